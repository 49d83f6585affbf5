// Does: loss_sum = sum over ranks s of loss_s n_s (0 where n_s = 0); normalized = loss_sum / N;
//   grad_loss = (grad_normalized / N + grad_sum) n on the own rank. In float, rounded at the end.
//
// Moves: one float to every peer, by an SM store.
//
// Protocol: one BlockBarrier publishes the floats; two halves of W slots alternate by call. Call k+2 may overwrite the half of
//   call k on rank p: it has passed the barrier of call k+1, which p announced after its kernel of call k had ended.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: one block of 32 threads, one of them a peer.
//
// Assumes: losses and gradients of float, bfloat16 or half, int64 counts on the device; up to 8 ranks. Checked in solution.py.
//
// Speed: bound by launch and barrier. Predicted for two H200, not measured: about 8 us.

#include "exchange.cuh"
#include "reduce.cuh"

using namespace pkb;

template <class T, class Grad>
__global__ void __launch_bounds__(kWarpThreads)
    weigh(const __grid_constant__ Peers peers, const T* __restrict__ loss, const long long* __restrict__ num_local,
          const long long* __restrict__ num_global, const Grad* __restrict__ grad_normalized,
          const Grad* __restrict__ grad_sum, T* __restrict__ normalized, T* __restrict__ loss_sum,
          Grad* __restrict__ grad_loss, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "grad_acc_loss");
  const long long half = call_half(barrier, world_size);
  const float tokens = static_cast<float>(*num_local);
  // Not a product with 0, which would keep a NaN.
  const float part = *num_local > 0 ? static_cast<float>(*loss) * tokens : 0.0f;
  if (threadIdx.x < world_size) buffer_of<float>(peers, threadIdx.x)[half + rank] = part;
  barrier.sync();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int s = 0; s < world_size; ++s) total += buffer_of<float>(peers, rank)[half + s];
    const float all_tokens = static_cast<float>(*num_global);
    float grad = static_cast<float>(*grad_normalized) / all_tokens;
    if (grad_sum != nullptr) grad += static_cast<float>(*grad_sum);
    *normalized = static_cast<T>(total / all_tokens);
    *loss_sum = static_cast<T>(total);
    *grad_loss = static_cast<Grad>(grad * tokens);
  }
  barrier.end_call();
}
