// Does: out = sum over ranks s of block r of in_s on rank r, elementwise, in the dtype of the tensor; added in float in
//   rank order, rounded once.
//
// Moves: every rank stores block d of its tensor into a slot of rank d: n e (W-1)/W bytes out over the link for n
//   elements of e bytes. SM stores of 16 bytes.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, send and add: a BlockBarrier between them publishes the
//   stores, halves of the buffer alternate by call. Signals count up and stay for the next call. Calls of one rank are
//   in stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight, chunks of 16 packs a thread.
//
// Assumes: float, bfloat16 or half; up to 8 ranks; `in` and `out` on 16-byte boundaries; any number of elements a block:
//   where blocks do not begin on such boundaries they are read element by element. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 10 us for
//   64 KiB, 0.4 ms for 256 MiB, of which half crosses the link at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    reduce_scatter(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out,
                   long long block_elems, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "reducescatter");
  const long long num_packs = ceil_div(block_elems, kPackElems<T>);
  const long long half = call_half(barrier, world_size * num_packs);
  const bool aligned = block_elems % kPackElems<T> == 0;
  const auto slot = [&](int owner, int source) { return buffer_of<uint4>(peers, owner) + half + source * num_packs; };
  const auto load = [&](int block, long long i) {
    return load_maybe(aligned, in + block * block_elems, i, block_elems);
  };
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          // Every rank begins with another owner, so that no GPU is written to by all at once.
          const int owner = (rank + step) % world_size;
          uint4* const theirs = slot(owner, rank);
          copy_items(
              range, [&](long long i) { return load(owner, i); }, [&](long long i, uint4 v) { theirs[i] = v; });
        }
      },
      [&](const Range& range) {
        for (long long i = range.first; i < range.end; i += range.stride) {
          const uint4 sum = sum_over_ranks<T>(world_size, [&](int s) {
            return s == rank ? load(rank, i) : load_shared(slot(rank, s) + i);
          });
          store_pack(out, i, block_elems, sum);
        }
      });
  barrier.end_call();
}
