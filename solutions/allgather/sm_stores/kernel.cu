// Does: out[s] = in_s for every rank s, bytes moved as they are.
//
// Moves: every rank stores its tensor into slot `rank` of every peer's symmetric buffer, (W-1) n bytes out over the
//   link by SM stores of 16 bytes, its own slice into `out` in the same pass; then copies what has arrived from its
//   symmetric buffer to `out`, since a result may not live there.
//
// Protocol: BlockBarrier (signal.cuh): block b of each rank meets block b of the others, and block b handles the
//   same packs on every rank. Iteration t pushes chunk t and copies chunk t-1 out; the barrier between them publishes
//   the pushes. Halves of the buffer alternate by call. Call k+2 may overwrite the half of call k on rank p: block b
//   only got to call k+2 by passing a barrier of call k+1, which block b of p announced after its kernel of call k
//   had ended, reads included. Signals count up and stay for the next call. Calls of one rank are in stream order;
//   all ranks make them in the same order. Shapes and dtypes have buffers of their own.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight. A chunk is 16 packs a thread: while one is copied out, the next is on the link.
//
// Assumes: up to 8 ranks; `in` on a 16-byte boundary; any number of bytes that is a multiple of Unit's. Slots are
//   padded to whole packs, so only slices of `out` may be unaligned: then they are written Unit by Unit. The same
//   number of blocks on every rank. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Not measured.

#include "memory.cuh"
#include "signal.cuh"

using namespace pkb;

constexpr int kThreads = 512;
constexpr int kMaxBlocks = 128;
constexpr int kBatchPacks = 4;
constexpr int kChunkPacks = 16;  // of a thread
// Symmetric buffer: the blocks' signals, then two halves of W slots.
constexpr int kSignalBytes = kMaxBlocks * sizeof(BlockSignals);
static_assert(kSignalBytes == 8192, "SIGNAL_BYTES of solution.py");

__device__ inline uint4* packs_of(const Peers& peers, int rank) {
  return reinterpret_cast<uint4*>(static_cast<char*>(peers.at[rank]) + kSignalBytes);
}

// Unit: the widest type, up to 16 bytes, that divides the bytes of a slice.
template <class Unit>
__device__ inline void store_out(Unit* slice, long long index, long long num_units, uint4 pack) {
  if constexpr (sizeof(Unit) == kPackBytes) {
    slice[index] = pack;
  } else {
    store_elems(slice, index, num_units, pack);
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, 1)
    all_gather(const __grid_constant__ Peers peers, const Unit* __restrict__ in, Unit* __restrict__ out,
               long long num_units, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "allgather sm_stores");
  const long long num_packs = ceil_div(num_units, kPackElems<Unit>);
  const long long stride = gridDim.x * static_cast<long long>(kThreads);
  const long long chunk_packs = stride * kChunkPacks;
  const long long num_chunks = ceil_div(num_packs, chunk_packs);
  const long long mine = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  const long long half = (barrier.calls() & 1) * world_size * num_packs;

  const auto push = [&](long long first, long long end) {
    copy_packs<kBatchPacks>(
        first, end, stride, [&](long long i) { return load_pack(in, i, num_units); },
        [&](long long i, uint4 v) {
          store_out(out + rank * num_units, i, num_units, v);
          for (int step = 1; step < world_size; ++step) {
            packs_of(peers, (rank + step) % world_size)[half + rank * num_packs + i] = v;
          }
        });
  };
  const auto copy_out = [&](long long first, long long end) {
    for (int step = 1; step < world_size; ++step) {
      const int source = (rank + step) % world_size;
      const uint4* const arrived = packs_of(peers, rank) + half + source * num_packs;
      Unit* const slice = out + source * num_units;
      copy_packs<kBatchPacks>(
          first, end, stride, [&](long long i) { return load_shared(arrived + i); },
          [&](long long i, uint4 v) { store_out(slice, i, num_units, v); });
    }
  };
  for (long long t = 0; t < num_chunks + 1; ++t) {
    if (t < num_chunks) push(t * chunk_packs + mine, min((t + 1) * chunk_packs, num_packs));
    if (t >= 1) copy_out((t - 1) * chunk_packs + mine, min(t * chunk_packs, num_packs));
    if (t < num_chunks) barrier.sync();
  }
  barrier.end_call();
}
