// Does: out = sum over ranks s of in_s on rank dst, elementwise, in the dtype of the tensor; added in float in rank
//   order, rounded once. Nothing is written on the other ranks.
//
// Moves: direct (small, or two ranks): every peer stores its tensor into a slot of dst, (W-1) n e bytes into dst.
//   sliced (large): the tensor falls into W-1 slices, one a rank other than dst; everyone stores each slice into a slot
//   of the rank that adds it up, and that one stores the sum into dst: at most n e bytes into and out of any rank.
//   SM stores of 16 bytes.
//
// Protocol: that of `pipeline` (exchange.cuh). direct: send, add. sliced: send, add and send on, place. Slots are
//   written by the first stage, in halves that alternate by call; sums are written by the second one, which needs but
//   one buffer. dst may change from call to call: all ranks take part in every barrier whatever their role. Signals
//   count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight, chunks of 16 packs a thread.
//
// Assumes: float, bfloat16 or half; up to 8 ranks; `in` and `out` on 16-byte boundaries; any number of elements.
//   Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 10 us for
//   64 KiB, 1.6 ms for 512 MiB at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    reduce_direct(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out,
                  long long num_elems, int dst, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "reduce direct");
  const long long num_packs = ceil_div(num_elems, kPackElems<T>);
  const long long half = call_half(barrier, world_size * num_packs);
  const auto slot = [&](int source) { return buffer_of<uint4>(peers, dst) + half + source * num_packs; };
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        if (rank == dst) return;
        copy_items(
            range, [&](long long i) { return load_pack(in, i, num_elems); },
            [&](long long i, uint4 v) { slot(rank)[i] = v; });
      },
      [&](const Range& range) {
        if (rank != dst) return;
        for (long long i = range.first; i < range.end; i += range.stride) {
          const uint4 sum = sum_over_ranks<T>(world_size, [&](int s) {
            return s == rank ? load_pack(in, i, num_elems) : load_shared(slot(s) + i);
          });
          store_pack(out, i, num_elems, sum);
        }
      });
  barrier.end_call();
}

// Symmetric buffer: two halves of W slots of a slice, then W-1 slices of sums.
template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    reduce_sliced(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out,
                  long long num_elems, int dst, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "reduce sliced");
  const long long num_packs = ceil_div(num_elems, kPackElems<T>);
  const int num_slices = world_size - 1;
  const long long slice_packs = ceil_div(num_packs, num_slices);
  const long long half = call_half(barrier, world_size * slice_packs);
  uint4* const sums = buffer_of<uint4>(peers, dst) + 2 * world_size * slice_packs;
  const auto slot = [&](int owner, int source) {
    return buffer_of<uint4>(peers, owner) + half + source * slice_packs;
  };
  // Owners are counted from the rank after dst.
  const int own_slice = (rank - dst - 1 + world_size) % world_size;
  const auto within = [&](const Range& range, int slice) {
    return Range{range.first, min(range.end, num_packs - slice * slice_packs), range.stride};
  };
  pipeline(
      barrier, slice_packs,
      [&](const Range& range) {
        for (int step = 0; step < num_slices; ++step) {
          // Every rank begins with another owner, so that no GPU is written to by all at once.
          const int slice = (rank + step) % num_slices;
          const int owner = (dst + 1 + slice) % world_size;
          if (owner == rank) continue;
          const long long offset = slice * slice_packs;
          uint4* const theirs = slot(owner, rank);
          copy_items(
              within(range, slice), [&](long long i) { return load_pack(in, offset + i, num_elems); },
              [&](long long i, uint4 v) { theirs[i] = v; });
        }
      },
      [&](const Range& range) {
        if (rank == dst) return;
        const long long offset = own_slice * slice_packs;
        const Range mine = within(range, own_slice);
        for (long long i = mine.first; i < mine.end; i += mine.stride) {
          sums[offset + i] = sum_over_ranks<T>(world_size, [&](int s) {
            return s == rank ? load_pack(in, offset + i, num_elems) : load_shared(slot(rank, s) + i);
          });
        }
      },
      [&](const Range& range) {
        if (rank != dst) return;
        for (int slice = 0; slice < num_slices; ++slice) {
          const long long offset = slice * slice_packs;
          copy_items(
              within(range, slice), [&](long long i) { return load_shared(sums + offset + i); },
              [&](long long i, uint4 v) { store_pack(out, offset + i, num_elems, v); });
        }
      });
  barrier.end_call();
}
