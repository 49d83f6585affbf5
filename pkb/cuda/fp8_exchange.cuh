// Exchanges of FP8 codes with one delayed scale a rank: the maximum of a tensor, and the slots that codes and scales travel
// in. The host side is `pkb.cuda.Fp8Exchange`.

#pragma once

#include "exchange.cuh"
#include "quantize.cuh"

namespace pkb {

// A kernel of its own, before the one that exchanges: all its blocks must have ended before the scale is known.
template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    find_largest(const T* __restrict__ in, long long num_elems, float* __restrict__ largest) {
  largest_of_block(in, num_elems, largest);
}

// Symmetric buffer: two halves of [W, kMaxBlocks] scales, one a block since each block publishes to its peer only, then
// two halves of W slots of codes.
template <class T>
struct CodeSlots {
  using Word = typename PackCodes<T>::Word;
  const Peers& peers;
  long long num_packs;
  long long parity;
  int world_size;

  __device__ float* scale(int owner, int source) const {
    return buffer_of<float>(peers, owner) + (parity * world_size + source) * kMaxBlocks + blockIdx.x;
  }
  __device__ Word* codes(int owner, int source) const {
    return reinterpret_cast<Word*>(buffer_of<float>(peers, owner) + 2 * world_size * kMaxBlocks) +
           (parity * world_size + source) * num_packs;
  }
};

}  // namespace pkb
