// Does: out = in_src[r] on rank r, bytes moved as they are.
//
// Moves: src stores slice r of its tensor into the symmetric buffer of rank r, (W-1) m bytes out over its link for
//   slices of m bytes; each receiver copies from there into the result, since a result may not live in symmetric memory.
//   SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, send and place: a BlockBarrier between them publishes
//   the stores, halves of the buffer alternate by call. src may change from call to call: all ranks take part in every
//   barrier whatever their role. Signals count up and stay for the next call. Calls of one rank are in stream order,
//   all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight, chunks of 16 packs a thread.
//
// Assumes: up to 8 ranks; `in` and `out` on 16-byte boundaries; slices of any number of units, where Unit is the widest
//   type of up to 16 bytes that divides the bytes of a slice. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link of src above. Predicted for two H200, not measured: about 10 us
//   for slices of 64 KiB, 0.4 ms for slices of 128 MiB at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

template <class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    scatter(const __grid_constant__ Peers peers, const Unit* __restrict__ in, Unit* __restrict__ out,
            long long slice_units, int src, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "scatter");
  const long long num_packs = ceil_div(slice_units, kPackElems<Unit>);
  const long long half = call_half(barrier, num_packs);
  constexpr bool kAligned = sizeof(Unit) == kPackBytes;
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        if (rank != src) return;
        for (int step = 0; step < world_size; ++step) {
          const int owner = (src + step) % world_size;
          uint4* const theirs = buffer_of<uint4>(peers, owner) + half;
          copy_items(
              range, [&](long long i) { return load_maybe(kAligned, in + owner * slice_units, i, slice_units); },
              [&](long long i, uint4 v) {
                if (owner == src) {
                  store_pack(out, i, slice_units, v);
                } else {
                  theirs[i] = v;
                }
              });
        }
      },
      [&](const Range& range) {
        if (rank == src) return;
        const uint4* const arrived = buffer_of<uint4>(peers, rank) + half;
        copy_items(
            range, [&](long long i) { return load_shared(arrived + i); },
            [&](long long i, uint4 v) { store_pack(out, i, slice_units, v); });
      });
  barrier.end_call();
}
