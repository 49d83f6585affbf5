// Does: Adam on the own shard in float, rounded once to the dtype, then the new weights of all ranks, joined.
//
// Moves: every rank stores the p new weights of its shard into a slot of every peer, (W-1) p e bytes out over the link
//   for e bytes a weight, as soon as it has them; peers copy them into the result. Gradient, weights and moments are read
//   once from HBM. SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, update and place: a BlockBarrier between
//   them publishes the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes of input a
//   thread, four loads in flight, chunks of 16 packs a thread.
//
// Assumes: float, bfloat16 or half, one dtype for all vectors; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries.
//   Any p: where shards do not begin on 16-byte boundaries in the result they are written element by element. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 10 us for 4096
//   weights, 0.25 ms for 2^25 weights of bfloat16 at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

struct Adam {
  float beta1;
  float rest1;  // 1 - beta1
  float beta2;
  float rest2;
  float step_size;   // lr / (1 - beta1^step)
  float correction;  // 1 / sqrt(1 - beta2^step)
  float eps;

  __device__ float update(float g, float w, float m, float v) const {
    const float new_m = beta1 * m + rest1 * g;
    const float new_v = beta2 * v + rest2 * g * g;
    // Without gradient and moments the weight stays, also where eps is 0.
    return new_m == 0.0f ? w : w - step_size * new_m / (sqrtf(new_v) * correction + eps);
  }
};
static_assert(sizeof(Adam) == 28, "passed from Python as seven floats");

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    adam_all_gather(const __grid_constant__ Peers peers, const T* __restrict__ grad, const T* __restrict__ weight,
                    const T* __restrict__ exp_avg, const T* __restrict__ exp_avg_sq, T* __restrict__ out,
                    long long num_elems, const __grid_constant__ Adam adam, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "fused_adam_grad_unshard_allgather");
  const long long num_packs = ceil_div(num_elems, kPackElems<T>);
  const long long half = call_half(barrier, world_size * num_packs);
  const bool aligned = num_elems % kPackElems<T> == 0;
  const auto slot = [&](int owner, int source) { return buffer_of<uint4>(peers, owner) + half + source * num_packs; };
  const auto place = [&](int source, long long i, uint4 v) {
    store_maybe(aligned, out + source * num_elems, i, num_elems, v);
  };
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        for (long long i = range.first; i < range.end; i += range.stride) {
          float g[kPackElems<T>], w[kPackElems<T>], m[kPackElems<T>], v[kPackElems<T>];
          PackOf<T>::to_floats(load_pack(grad, i, num_elems), g);
          PackOf<T>::to_floats(load_pack(weight, i, num_elems), w);
          PackOf<T>::to_floats(load_pack(exp_avg, i, num_elems), m);
          PackOf<T>::to_floats(load_pack(exp_avg_sq, i, num_elems), v);
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) w[k] = adam.update(g[k], w[k], m[k], v[k]);
          const uint4 pack = PackOf<T>::of_floats(w);
          place(rank, i, pack);
          for (int step = 1; step < world_size; ++step) slot((rank + step) % world_size, rank)[i] = pack;
        }
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const uint4* const arrived = slot(rank, source);
          copy_items(
              range, [&](long long i) { return load_shared(arrived + i); },
              [&](long long i, uint4 v) { place(source, i, v); });
        }
      });
  barrier.end_call();
}
