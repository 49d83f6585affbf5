// Does: y = concat over ranks s along the sequence of rotate(x_s) for x = q and x = k, where, for d < D/2,
//   rotate(x)[d] = x[d] cos[d] - x[d + D/2] sin[d] and rotate(x)[d + D/2] = x[d + D/2] cos[d + D/2] + x[d] sin[d + D/2];
//   in float, rounded once.
//
// Moves: every rank rotates its shards once and stores them into a slot of every peer, from where they go into the
//   results, since those may not live in symmetric memory: 2 (W-1) n e bytes out over the link for n elements of e bytes.
//   Own shards go straight to their places. q and k are read once, cos and sin once per head, mostly from L1. SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, rotate and place: a BlockBarrier between them publishes the
//   stores, halves of the buffer alternate by call. Signals count up and stay for the next call. Calls of one rank are in
//   stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A thread handles a unit of the
//   first half of a head and its partner in the second, four such pairs in flight, chunks of 16: while one is placed, the
//   next is on the link.
//
// Assumes: float, bfloat16 or half, one dtype for all; up to 8 ranks, the same shapes on all; an even D; tensors on 16-byte
//   boundaries; fewer than 2^31 units a tensor. A unit is 16 bytes where these divide half a head, else one element.
//   Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 12 us for [16, 8,
//   8, 64], 0.85 ms for [1, 16384, 32, 128] of bfloat16, 128 MiB each for q and k at 330 GB/s.

#include "blocks.cuh"

using namespace pkb;

// Elements that are accessed at once.
template <class T, class Unit>
union Elems {
  static constexpr int kCount = sizeof(Unit) / sizeof(T);
  Unit unit;
  T elem[kCount];
};

// A unit of the first half of a head and the one at the same place of the second.
template <class Unit>
struct Pair {
  Unit low;
  Unit high;
};

// x[low] cos - x[high] sin in the first half, x[high] cos + x[low] sin in the second: one product each, then the sum.
template <class T, class Unit>
__device__ inline Pair<Unit> rotate(const Pair<Unit>& x, const Pair<Unit>& cos, const Pair<Unit>& sin) {
  const Elems<T, Unit> x_low{x.low}, x_high{x.high}, cos_low{cos.low}, cos_high{cos.high}, sin_low{sin.low},
      sin_high{sin.high};
  Elems<T, Unit> low, high;
#pragma unroll
  for (int k = 0; k < Elems<T, Unit>::kCount; ++k) {
    const float a = static_cast<float>(x_low.elem[k]), b = static_cast<float>(x_high.elem[k]);
    low.elem[k] =
        static_cast<T>(a * static_cast<float>(cos_low.elem[k]) - b * static_cast<float>(sin_low.elem[k]));
    high.elem[k] =
        static_cast<T>(b * static_cast<float>(cos_high.elem[k]) + a * static_cast<float>(sin_high.elem[k]));
  }
  return {low.unit, high.unit};
}

// The tensors that are rotated, and in which order their pairs are numbered: q before k, in row-major order. A slot
// holds the first halves of all pairs, then the second ones.
template <class Unit>
struct Shard {
  const Unit* x[2];
  Unit* y[2];
  long long num_pairs;  // of one tensor
  unsigned half_units;  // of a head
  unsigned num_heads;

  __device__ int tensor_of(long long i) const { return i >= num_pairs; }
  // Of the first unit of pair `i`, in its tensor.
  __device__ unsigned unit_of(long long i) const {
    const unsigned pair = static_cast<unsigned>(i - tensor_of(i) * num_pairs);
    return pair + pair / half_units * half_units;
  }
  __device__ Pair<Unit> pair_at(const Unit* tensor, long long unit) const {
    return {tensor[unit], tensor[unit + half_units]};
  }
  // Of cos and sin, which have no heads.
  __device__ Pair<Unit> angle_at(const Unit* angles, unsigned unit) const {
    const unsigned head_units = 2 * half_units;
    const unsigned token = unit / (head_units * num_heads);
    return pair_at(angles, static_cast<long long>(token) * head_units + unit % head_units);
  }
  __device__ void put(long long i, const Layout& target, int rank, const Pair<Unit>& v) const {
    Unit* const to = y[tensor_of(i)] + target.place(unit_of(i), rank);
    to[0] = v.low;
    to[half_units] = v.high;
  }
};

template <class T, class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    rotate_and_gather(const __grid_constant__ Peers peers, const Unit* __restrict__ q, const Unit* __restrict__ k,
                      const Unit* __restrict__ cos, const Unit* __restrict__ sin, Unit* __restrict__ all_q,
                      Unit* __restrict__ all_k, long long num_pairs, int half_units, int num_heads,
                      const __grid_constant__ Layout target, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "rope_allgather");
  const Shard<Unit> shard{
      {q, k}, {all_q, all_k}, num_pairs, static_cast<unsigned>(half_units), static_cast<unsigned>(num_heads)};
  const long long slot_pairs = 2 * num_pairs;
  const long long half = call_half(barrier, world_size * 2 * slot_pairs);
  const auto slot = [&](int owner, int source) {
    return buffer_of<Unit>(peers, owner) + half + source * 2 * slot_pairs;
  };
  pipeline(
      barrier, slot_pairs,
      [&](const Range& range) {
        copy_items(
            range,
            [&](long long i) {
              const unsigned unit = shard.unit_of(i);
              return rotate<T>(shard.pair_at(shard.x[shard.tensor_of(i)], unit), shard.angle_at(cos, unit),
                               shard.angle_at(sin, unit));
            },
            [&](long long i, const Pair<Unit>& v) {
              shard.put(i, target, rank, v);
              for (int step = 1; step < world_size; ++step) {
                // Every rank begins with another peer, so that no GPU is written to by all at once.
                Unit* const theirs = slot((rank + step) % world_size, rank);
                theirs[i] = v.low;
                theirs[slot_pairs + i] = v.high;
              }
            });
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const Unit* const arrived = slot(rank, source);
          copy_items(
              range,
              [&](long long i) {
                return Pair<Unit>{load_shared(arrived + i), load_shared(arrived + slot_pairs + i)};
              },
              [&](long long i, const Pair<Unit>& v) { shard.put(i, target, source, v); });
        }
      });
  barrier.end_call();
}
