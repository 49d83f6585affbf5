// Does: out[s] = in_s for every rank s, on rank dst, bytes moved as they are. Nothing is written on the other ranks.
//
// Moves: every rank stores its tensor of m bytes into a slot of dst, (W-1) m bytes into dst over its link; dst copies
//   from there into the result, since a result may not live in symmetric memory. SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, send and place: a BlockBarrier between them publishes
//   the stores, halves of the buffer alternate by call. dst may change from call to call: all ranks take part in every
//   barrier whatever their role. Signals count up and stay for the next call. Calls of one rank are in stream order,
//   all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight, chunks of 16 packs a thread.
//
// Assumes: up to 8 ranks; `in` and `out` on 16-byte boundaries; any number of units, where Unit is the widest type of up
//   to 16 bytes that divides the bytes of a tensor. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link of dst above. Predicted for two H200, not measured: about 10 us
//   for 64 KiB, 0.4 ms for 128 MiB at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

template <class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    gather(const __grid_constant__ Peers peers, const Unit* __restrict__ in, Unit* __restrict__ out,
           long long num_units, int dst, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "gather");
  const long long num_packs = ceil_div(num_units, kPackElems<Unit>);
  const long long half = call_half(barrier, world_size * num_packs);
  const auto slot = [&](int source) { return buffer_of<uint4>(peers, dst) + half + source * num_packs; };
  constexpr bool kAligned = sizeof(Unit) == kPackBytes;
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        uint4* const theirs = slot(rank);
        copy_items(
            range, [&](long long i) { return load_pack(in, i, num_units); },
            [&](long long i, uint4 v) {
              if (rank == dst) {
                store_maybe(kAligned, out + rank * num_units, i, num_units, v);
              } else {
                theirs[i] = v;
              }
            });
      },
      [&](const Range& range) {
        if (rank != dst) return;
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const uint4* const arrived = slot(source);
          copy_items(
              range, [&](long long i) { return load_shared(arrived + i); },
              [&](long long i, uint4 v) { store_maybe(kAligned, out + source * num_units, i, num_units, v); });
        }
      });
  barrier.end_call();
}
