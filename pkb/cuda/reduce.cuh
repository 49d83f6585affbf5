// Sums over a warp and over a block, the same on every thread. The order of additions depends on nothing but the
// block's size, so ranks that add the same numbers get the same bits.

#pragma once

namespace pkb {

constexpr int kWarpThreads = 32;

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// `parts` is shared memory of one float a warp, free for use again when the call returns.
__device__ inline float block_sum(float x, float* parts) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  x = warp_sum(x);
  if (threadIdx.x % kWarpThreads == 0) parts[warp] = x;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < num_warps; ++k) total += parts[k];
  __syncthreads();
  return total;
}

}  // namespace pkb
