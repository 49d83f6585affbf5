// Does: out[s] = in_s for every rank s, bytes moved as they are.
//
// Moves: every rank sends its tensor to W-1 peers: (W-1) n e bytes out over the link for n elements of e bytes.
//   A block goes by SM stores into a slot of its owner's symmetric buffer, from there into the result, since a result
//   may not live in symmetric memory; the own block goes straight to its place.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, sending and placing: a BlockBarrier between them
//   publishes the stores, halves of the buffer alternate by call. Signals count up and stay for the next call. Calls of
//   one rank are in stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A unit a thread, four loads in
//   flight, chunks of 16 units a thread: while one is placed, the next is on the link.
//
// Assumes: any dtype, up to 8 ranks, the same shapes on all; `in` and `out` on 16-byte boundaries; blocks of fewer than
//   2^31 units. Unit is as wide as shape allows, up to 16 bytes. Checked in pkb/cuda/blocks.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about
//   10 us for 64 KiB, 0.4 ms for a tensor of 128 MiB, which crosses the link at 330 GB/s.

#include "blocks.cuh"

using namespace pkb;

template <class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    all_gather(const __grid_constant__ Peers peers, const Unit* __restrict__ in, Unit* __restrict__ out,
               long long block_units, const __grid_constant__ Layout source, const __grid_constant__ Layout target,
               int rank, int world_size) {
  move_blocks(peers, in, out, block_units, source, target, rank, world_size, "allgather");
}
