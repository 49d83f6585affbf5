// Does: the gather of allgather_gemm for small A: A = concat over ranks s of A_local_s along dim 1, on every rank.
//   (For large A the copy engine does it, see solution.py; the product is cuBLAS's in both cases.)
//
// Moves: every rank stores its A_local [M, K/W] into its columns of the gathered A [M, K] of every rank, itself
//   included: M K e (W-1)/W bytes out over the link by SM stores. The product reads the gathered A from the rank's
//   own symmetric memory; no staging, no concatenation.
//
// Protocol: BlockBarrier (signal.cuh) after the stores: block b of each rank meets block b of the others, so when
//   the whole kernel has ended, all blocks of all ranks have stored, and the product, next in the stream, sees all
//   of A.
//   `half` alternates by call. Call k+2 may overwrite the half of call k on rank p: this rank has passed the barrier
//   of call k+1, which p announced after its product of call k, stream order. Signals count up and stay for the next
//   call.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident; a unit of up to 16 bytes a
//   thread, four loads in flight.
//
// Assumes: up to 8 ranks; Unit divides the bytes of a row of A_local, so that no access crosses into the next rank's
//   columns; A_local on a 16-byte boundary and smaller than 2^31 units; the same number of blocks on every rank.
//   Checked in solution.py.
//
// Speed: bound by the barrier and by cuBLAS. Not measured.

#include "memory.cuh"
#include "signal.cuh"

using namespace pkb;

constexpr int kThreads = 512;
constexpr int kMaxBlocks = 128;
constexpr int kBatchUnits = 4;
// Symmetric buffer: the blocks' signals, then two halves of [M, K].
constexpr int kSignalBytes = kMaxBlocks * sizeof(BlockSignals);
static_assert(kSignalBytes == 8192, "SIGNAL_BYTES of solution.py");

template <class Unit>
__global__ void __launch_bounds__(kThreads, 1)
    gather_columns(const __grid_constant__ Peers peers, const Unit* __restrict__ local, int num_rows,
                   int units_per_row, long long half_bytes, int half, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "allgather_gemm gather_columns");
  const int num_units = num_rows * units_per_row;
  const int stride = gridDim.x * kThreads;
  // Bounds are checked before an index is formed, which stays below 2^31 + kBatchUnits * stride: unsigned.
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < num_units; i += kBatchUnits * stride) {
    Unit v[kBatchUnits];
#pragma unroll
    for (int k = 0; k < kBatchUnits; ++k) {
      if (i + k * stride < num_units) v[k] = local[i + k * stride];
    }
#pragma unroll
    for (int k = 0; k < kBatchUnits; ++k) {
      const unsigned unit = i + k * stride;
      if (unit >= num_units) break;
      const long long row = unit / units_per_row;
      const long long target = (row * world_size + rank) * units_per_row + unit % units_per_row;
      for (int step = 0; step < world_size; ++step) {
        char* const base = static_cast<char*>(peers.at[(rank + step) % world_size]) + kSignalBytes;
        reinterpret_cast<Unit*>(base + half * half_bytes)[target] = v[k];
      }
    }
  }
  barrier.sync();
}
