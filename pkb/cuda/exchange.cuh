// Exchanges between ranks, chunk by chunk: while one chunk is on the link, the one before is consumed.
//
// The symmetric buffer of an exchange begins with the signals of kMaxBlocks blocks; what follows is the caller's. The
// host side is `pkb.cuda.Workspaces`.
//
// pipeline(barrier, n, stage 0, stage 1, ...) walks over items 0 to n-1 in chunks. In iteration t stage s handles chunk
// t - s, and a BlockBarrier stands between iterations. A position is handled by the same block on every rank and in
// every stage, so what stage s wrote for a chunk, into whatever rank's buffer, is published to stage s+1 of all ranks.
// Within a call no buffer is reused by position. Between calls:
//  - a buffer that only stage 0 writes needs two halves that alternate by call (call_half). Call k+2 may overwrite the
//    half of call k on rank p: block b only got there by passing a barrier of call k+1, which block b of p announced
//    after its kernel of call k had ended, reads included;
//  - a buffer that a later stage writes needs one: that stage runs behind the first barrier of its call, which p
//    announces only when its kernel of the call before has ended.
// All ranks give the same n and launch the same grid; items are mostly packs. n may be 0.

#pragma once

#include "memory.cuh"
#include "signal.cuh"

namespace pkb {

constexpr int kExchangeThreads = 512;
constexpr int kMaxBlocks = 128;
constexpr int kSignalBytes = kMaxBlocks * sizeof(BlockSignals);
static_assert(kSignalBytes == 8192, "SIGNAL_BYTES of workspace.py");
constexpr int kBatchItems = 4;
constexpr int kChunkItems = 16;  // of a thread

// What follows the signals in a rank's symmetric buffer.
template <class T>
__device__ inline T* buffer_of(const Peers& peers, int rank) {
  return reinterpret_cast<T*>(static_cast<char*>(peers.at[rank]) + kSignalBytes);
}

// 0 or `size`, alternating by call, the same on every rank.
__device__ inline long long call_half(const BlockBarrier& barrier, long long size) {
  return (barrier.calls() & 1) * size;
}

// Items first, first + stride, ... below end.
struct Range {
  long long first;
  long long end;
  long long stride;
};

// This thread's share of items 0 to num_items - 1.
__device__ inline Range share_of(long long num_items) {
  return {blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x, num_items,
          gridDim.x * static_cast<long long>(blockDim.x)};
}

// The block's share of tiles 0 to num_tiles - 1.
__device__ inline Range tiles_of(long long num_tiles) { return {blockIdx.x, num_tiles, gridDim.x}; }

template <class Load, class Store>
__device__ inline void copy_items(const Range& range, Load load, Store store) {
  for (long long i = range.first; i < range.end; i += kBatchItems * range.stride) {
    decltype(load(i)) v[kBatchItems];
#pragma unroll
    for (int k = 0; k < kBatchItems; ++k) {
      if (i + k * range.stride < range.end) v[k] = load(i + k * range.stride);
    }
#pragma unroll
    for (int k = 0; k < kBatchItems; ++k) {
      if (i + k * range.stride < range.end) store(i + k * range.stride, v[k]);
    }
  }
}

template <int kChunk, class Stage>
__device__ inline void run_stage(const Stage& stage, long long chunk, const Range& share) {
  const long long begin = chunk * share.stride * kChunk;
  if (chunk < 0 || begin >= share.end) return;
  stage(Range{begin + share.first, min(begin + share.stride * kChunk, share.end), share.stride});
}

// The same for shares of another kind, such as tiles that a whole block handles (tiles_of); kChunk of them are a chunk.
template <int kChunk, class... Stages>
__device__ inline void pipeline_of(BlockBarrier& barrier, const Range& share, const Stages&... stages) {
  constexpr int kNumBehind = sizeof...(Stages) - 1;
  const long long num_iterations = ceil_div(share.end, share.stride * kChunk) + kNumBehind;
  for (long long t = 0; t < num_iterations; ++t) {
    long long chunk = t;
    (run_stage<kChunk>(stages, chunk--, share), ...);
    if (t < num_iterations - 1) barrier.sync();
  }
}

template <class... Stages>
__device__ inline void pipeline(BlockBarrier& barrier, long long num_items, const Stages&... stages) {
  pipeline_of<kChunkItems>(barrier, share_of(num_items), stages...);
}

// Sum of one pack a rank, `load(s)` giving that of rank s; added in float in rank order, so that all ranks get the same
// bits. All loads are in flight before the first addition.
template <class T, class Load>
__device__ inline void add_ranks(int world_size, Load load, float (&total)[kPackElems<T>]) {
  uint4 part[kMaxRanks];
#pragma unroll
  for (int s = 0; s < kMaxRanks; ++s) {
    if (s < world_size) part[s] = load(s);
  }
  PackOf<T>::to_floats(part[0], total);
#pragma unroll
  for (int s = 1; s < kMaxRanks; ++s) {
    if (s < world_size) {
      float x[kPackElems<T>];
      PackOf<T>::to_floats(part[s], x);
#pragma unroll
      for (int k = 0; k < kPackElems<T>; ++k) total[k] += x[k];
    }
  }
}

// The same, rounded once.
template <class T, class Load>
__device__ inline uint4 sum_over_ranks(int world_size, Load load) {
  float total[kPackElems<T>];
  add_ranks<T>(world_size, load, total);
  return PackOf<T>::of_floats(total);
}

// A tensor of which each pack may be accessed at once only if it lies on a 16-byte boundary.
template <class T>
__device__ inline uint4 load_maybe(bool aligned, const T* elems, long long index, long long num_elems) {
  return aligned ? load_pack(elems, index, num_elems) : load_elems(elems, index, num_elems);
}

template <class T>
__device__ inline void store_maybe(bool aligned, T* elems, long long index, long long num_elems, uint4 pack) {
  if (aligned) {
    store_pack(elems, index, num_elems, pack);
  } else {
    store_elems(elems, index, num_elems, pack);
  }
}

template <class T>
__device__ inline bool is_aligned(const T* address) {
  return reinterpret_cast<unsigned long long>(address) % kPackBytes == 0;
}

}  // namespace pkb
