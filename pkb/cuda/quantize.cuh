// Rounding to 8 bits, in packs: codes of FP8 (e4m3) and int8, maxima of blocks, and delayed scaling.

#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "memory.cuh"
#include "reduce.cuh"

namespace pkb {

constexpr float kLargestFp8 = 448.0f;

// To nearest, ties to even; what is beyond the largest becomes the largest.
__device__ inline unsigned char fp8_code(float x) {
  return static_cast<unsigned char>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
}

__device__ inline float fp8_value(unsigned char code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// The codes of the elements of one pack: 4 bytes for float, 8 for the others.
template <class T>
union PackCodes {
  using Word = typename std::conditional<sizeof(T) == 4, unsigned, unsigned long long>::type;
  Word word;
  unsigned char code[kPackElems<T>];
};

template <int kElems>
__device__ inline float largest_of(const float (&x)[kElems]) {
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < kElems; ++k) largest = fmaxf(largest, fabsf(x[k]));
  return largest;
}

// The largest of `lanes` neighboring threads, a power of two up to 32, on each of them. All of them must take part;
// other threads of the warp need not.
__device__ inline float group_max(float x, int lanes) {
  const unsigned lane = threadIdx.x % kWarpThreads;
  const unsigned mask = lanes == kWarpThreads ? 0xffffffffu : ((1u << lanes) - 1) << (lane / lanes * lanes);
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(mask, x, distance));
  return x;
}

// `parts` is shared memory of one float a warp, free for use again when the call returns.
__device__ inline float block_max(float x, float* parts) {
  x = group_max(x, kWarpThreads);
  if (threadIdx.x % kWarpThreads == 0) parts[threadIdx.x / kWarpThreads] = x;
  __syncthreads();
  float largest = 0.0f;
  for (int k = 0; k < static_cast<int>(blockDim.x) / kWarpThreads; ++k) largest = fmaxf(largest, parts[k]);
  __syncthreads();
  return largest;
}

// Writes the largest |x| that this block has seen into largest[blockIdx.x]; for a kernel of its own, since all blocks
// must have ended before any knows the largest of all.
template <class T>
__device__ inline void largest_of_block(const T* in, long long num_elems, float* largest) {
  __shared__ float parts[kWarpThreads];
  const long long stride = gridDim.x * static_cast<long long>(blockDim.x);
  float mine = 0.0f;
  copy_packs<4>(
      blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, ceil_div(num_elems, kPackElems<T>), stride,
      [&](long long i) { return load_pack(in, i, num_elems); },
      [&](long long, uint4 v) {
        float x[kPackElems<T>];
        PackOf<T>::to_floats(v, x);
        mine = fmaxf(mine, largest_of(x));
      });
  mine = block_max(mine, parts);
  if (threadIdx.x == 0) largest[blockIdx.x] = mine;
}

// Delayed scaling: the history moves on by the largest of all blocks, and the scale comes from the largest in it. The
// same on all threads; block 0 writes the new history.
__device__ inline float delayed_scale(const float* largest, int num_largest, const __nv_bfloat16* history,
                                      __nv_bfloat16* new_history, int history_elems) {
  __shared__ float parts[kWarpThreads];
  float now = 0.0f;
  for (int i = threadIdx.x; i < num_largest; i += blockDim.x) now = fmaxf(now, largest[i]);
  const __nv_bfloat16 newest = __float2bfloat16_rn(block_max(now, parts));
  float past = __bfloat162float(newest);
  for (int i = threadIdx.x; i < history_elems; i += blockDim.x) {
    const __nv_bfloat16 entry = i + 1 < history_elems ? history[i + 1] : newest;
    past = fmaxf(past, __bfloat162float(entry));
    if (blockIdx.x == 0) new_history[i] = entry;
  }
  return fmaxf(block_max(past, parts), 1e-12f) / kLargestFp8;
}

// Codes of one pack of `in` at this scale.
template <class T>
__device__ inline PackCodes<T> fp8_codes(uint4 pack, float scale) {
  float x[kPackElems<T>];
  PackOf<T>::to_floats(pack, x);
  PackCodes<T> codes;
#pragma unroll
  for (int k = 0; k < kPackElems<T>; ++k) codes.code[k] = fp8_code(x[k] / scale);
  return codes;
}

// And back.
template <class T>
__device__ inline void fp8_floats(typename PackCodes<T>::Word word, float scale, float (&x)[kPackElems<T>]) {
  PackCodes<T> codes;
  codes.word = word;
#pragma unroll
  for (int k = 0; k < kPackElems<T>; ++k) x[k] = fp8_value(codes.code[k]) * scale;
}

}  // namespace pkb
