// Sixteen-byte accesses to one's own and to peers' memory, and their conversion to float.
//
// A pack is 16 bytes, the widest access of a thread: 4 float, 8 bfloat16 or half, 16 bytes of anything. Symmetric
// buffers are kept in whole packs, so only a user's tensor has a last pack that is cut short: load_pack and
// store_pack treat that one element by element and need a tensor that starts on a 16-byte boundary; load_elems and
// store_elems do so for every pack and need no alignment.
//
// Reading what a peer wrote, or a peer's memory: load_shared. It is a relaxed load of system scope, which goes past
// L1, so no line that an earlier read left there can answer it. What makes the new value visible is the signal that
// was waited for before (signal.cuh): relaxed loads order nothing by themselves.
// Writing into a peer's memory: a plain 16-byte store. It is published by the next release of system scope of this
// thread, or of another thread of the block after a __syncthreads.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pkb {

constexpr int kMaxRanks = 8;
constexpr int kPackBytes = 16;

template <class T>
constexpr int kPackElems = kPackBytes / static_cast<int>(sizeof(T));

// Peer pointers of one symmetric buffer, by rank. Take it as `const __grid_constant__ Peers`: indexing a parameter
// that is no __grid_constant__ copies it to local memory first.
struct Peers {
  void* at[kMaxRanks];
};
static_assert(sizeof(Peers) == 8 * kMaxRanks, "passed from Python as an array of addresses");

__host__ __device__ constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }

__device__ inline uint4 load_shared(const uint4* pack) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pack)
               : "memory");
  return v;
}

__device__ inline unsigned long long load_shared(const unsigned long long* unit) {
  unsigned long long v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(unit) : "memory");
  return v;
}

__device__ inline unsigned load_shared(const unsigned* unit) {
  unsigned v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(unit) : "memory");
  return v;
}

__device__ inline unsigned short load_shared(const unsigned short* unit) {
  unsigned short v;
  asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(unit) : "memory");
  return v;
}

__device__ inline unsigned char load_shared(const unsigned char* unit) {
  unsigned short v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=h"(v) : "l"(unit) : "memory");
  return static_cast<unsigned char>(v);
}

// Pack `index` of `num_elems` elements, element by element; elements past the end are zero.
template <class T>
__device__ inline uint4 load_elems(const T* elems, long long index, long long num_elems) {
  union {
    uint4 pack;
    T elem[kPackElems<T>];
  } v;
  v.pack = make_uint4(0, 0, 0, 0);
  const long long first = index * kPackElems<T>;
#pragma unroll
  for (int k = 0; k < kPackElems<T>; ++k) {
    if (first + k < num_elems) v.elem[k] = elems[first + k];
  }
  return v.pack;
}

// The same, in one access unless the pack is cut short; `elems` starts on a 16-byte boundary.
template <class T>
__device__ inline uint4 load_pack(const T* elems, long long index, long long num_elems) {
  if ((index + 1) * kPackElems<T> <= num_elems) return reinterpret_cast<const uint4*>(elems)[index];
  return load_elems(elems, index, num_elems);
}

template <class T>
__device__ inline void store_elems(T* elems, long long index, long long num_elems, uint4 pack) {
  union {
    uint4 pack;
    T elem[kPackElems<T>];
  } v;
  v.pack = pack;
  const long long first = index * kPackElems<T>;
#pragma unroll
  for (int k = 0; k < kPackElems<T>; ++k) {
    if (first + k < num_elems) elems[first + k] = v.elem[k];
  }
}

template <class T>
__device__ inline void store_pack(T* elems, long long index, long long num_elems, uint4 pack) {
  if ((index + 1) * kPackElems<T> <= num_elems) {
    reinterpret_cast<uint4*>(elems)[index] = pack;
  } else {
    store_elems(elems, index, num_elems, pack);
  }
}

// Calls store(i, load(i)) for i = first, first + stride, ... below end, kBatch loads before their stores: a link
// answers after about a microsecond, and one load at a time would leave it idle meanwhile.
template <int kBatch, class Load, class Store>
__device__ inline void copy_packs(long long first, long long end, long long stride, Load load, Store store) {
  for (long long i = first; i < end; i += kBatch * stride) {
    uint4 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * stride < end) v[k] = load(i + k * stride);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * stride < end) store(i + k * stride, v[k]);
    }
  }
}

// A pack as floats, and floats rounded once (to nearest, ties to even) into a pack.
template <class T>
struct PackOf;

template <>
struct PackOf<float> {
  static __device__ void to_floats(uint4 pack, float (&x)[4]) {
    x[0] = __uint_as_float(pack.x);
    x[1] = __uint_as_float(pack.y);
    x[2] = __uint_as_float(pack.z);
    x[3] = __uint_as_float(pack.w);
  }
  static __device__ uint4 of_floats(const float (&x)[4]) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
  }
};

template <>
struct PackOf<__nv_bfloat16> {
  static __device__ void to_floats(uint4 pack, float (&x)[8]) {
    const unsigned word[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // A bfloat16 is the upper half of a float.
      x[2 * k] = __uint_as_float(word[k] << 16);
      x[2 * k + 1] = __uint_as_float(word[k] & 0xffff0000u);
    }
  }
  static __device__ uint4 of_floats(const float (&x)[8]) {
    union {
      uint4 pack;
      __nv_bfloat162 pair[4];
    } v;
#pragma unroll
    for (int k = 0; k < 4; ++k) v.pair[k] = __floats2bfloat162_rn(x[2 * k], x[2 * k + 1]);
    return v.pack;
  }
};

template <>
struct PackOf<__half> {
  static __device__ void to_floats(uint4 pack, float (&x)[8]) {
    union {
      uint4 pack;
      __half2 pair[4];
    } v;
    v.pack = pack;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 both = __half22float2(v.pair[k]);
      x[2 * k] = both.x;
      x[2 * k + 1] = both.y;
    }
  }
  static __device__ uint4 of_floats(const float (&x)[8]) {
    union {
      uint4 pack;
      __half2 pair[4];
    } v;
#pragma unroll
    for (int k = 0; k < 4; ++k) v.pair[k] = __floats2half2_rn(x[2 * k], x[2 * k + 1]);
    return v.pack;
  }
};

}  // namespace pkb
