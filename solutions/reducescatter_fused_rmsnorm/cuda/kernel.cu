// Does: x = (1/W) sum over ranks of my rows, in float in rank order; out = x / sqrt(mean of x^2 + eps) gamma, rounded once.
//
// Moves: every rank stores the rows of rank d into a slot of rank d: n e (W-1)/W bytes out over the link. The owner reads
//   what arrived twice, the second time mostly from L2. SM stores of 16 bytes.
//
// Protocol: that of `pipeline_of` (exchange.cuh) with two stages, send and normalize: a BlockBarrier between them publishes
//   the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: a tile is 1 to 16 rows, shared by the 16 warps of a block; up to 128 blocks, at most one an SM, so that all are
//   resident, walk over the tiles. A chunk is 4 tiles of a block: while one is consumed, the next is on the link.
//
// Assumes: float, bfloat16 or half, input and gamma of one dtype; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries. Any number of rows
//   and columns: rows that do not begin on 16-byte boundaries are accessed element by element. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 12 us for 1024 x
//   128, 0.5 ms for 16384 x 8192 of bfloat16.

#include "exchange.cuh"
#include "reduce.cuh"

using namespace pkb;

constexpr int kWarps = kExchangeThreads / kWarpThreads;
constexpr int kChunkTiles = 4;

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    reduce_normalize(const __grid_constant__ Peers peers, const T* __restrict__ in, const T* __restrict__ gamma,
                     T* __restrict__ out, long long num_rows, long long row_elems, float eps, int tile_rows, int rank,
                     int world_size) {
  __shared__ float warp_sums[kWarps];
  BlockBarrier barrier(peers, rank, world_size, "reducescatter_fused_rmsnorm");
  const long long row_packs = ceil_div(row_elems, kPackElems<T>);
  const bool aligned = row_elems % kPackElems<T> == 0;
  const long long half = call_half(barrier, world_size * num_rows * row_packs);
  const int warps_per_row = kWarps / tile_rows;
  const int lanes = warps_per_row * kWarpThreads;
  const int my_row = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const auto load = [&](int owner, long long row, long long i) {
    return load_maybe(aligned, in + (owner * num_rows + row) * row_elems, i, row_elems);
  };
  const auto arrived = [&](int owner, int source, long long row) {
    return buffer_of<uint4>(peers, owner) + half + (source * num_rows + row) * row_packs;
  };
  const auto mean = [&](long long row, long long i, float(&x)[kPackElems<T>]) {
    for (int k = 0; k < kPackElems<T>; ++k) x[k] = 0.0f;
    // Not add_ranks, whose eight loads in flight would not leave enough registers.
#pragma unroll 4
    for (int s = 0; s < world_size; ++s) {
      float part[kPackElems<T>];
      PackOf<T>::to_floats(s == rank ? load(rank, row, i) : load_shared(arrived(rank, s, row) + i), part);
#pragma unroll
      for (int k = 0; k < kPackElems<T>; ++k) x[k] += part[k];
    }
#pragma unroll
    for (int k = 0; k < kPackElems<T>; ++k) x[k] /= static_cast<float>(world_size);
  };
  pipeline_of<kChunkTiles>(
      barrier, tiles_of(ceil_div(num_rows, tile_rows)),
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          const long long row = tile * tile_rows + my_row;
          if (row >= num_rows) continue;
          for (int step = 1; step < world_size; ++step) {
            const int owner = (rank + step) % world_size;
            uint4* const theirs = arrived(owner, rank, row);
            copy_items(
                Range{lane, row_packs, lanes}, [&](long long i) { return load(owner, row, i); },
                [&](long long i, uint4 v) { theirs[i] = v; });
          }
        }
      },
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          const long long row = tile * tile_rows + my_row;
          float x[kPackElems<T>], squares = 0.0f;
          if (row < num_rows) {
#pragma unroll 1
            for (long long i = lane; i < row_packs; i += lanes) {
              mean(row, i, x);
#pragma unroll
              for (int k = 0; k < kPackElems<T>; ++k) squares += x[k] * x[k];
            }
          }
          squares = warp_sum(squares);
          if (threadIdx.x % kWarpThreads == 0) warp_sums[threadIdx.x / kWarpThreads] = squares;
          __syncthreads();
          float total = 0.0f;
          for (int k = 0; k < warps_per_row; ++k) total += warp_sums[my_row * warps_per_row + k];
          // The next tile writes the sums anew.
          __syncthreads();
          if (row >= num_rows) continue;
          const float factor = rsqrtf(total / static_cast<float>(row_elems) + eps);
#pragma unroll 1
          for (long long i = lane; i < row_packs; i += lanes) {
            float weight[kPackElems<T>];
            mean(row, i, x);
            PackOf<T>::to_floats(load_pack(gamma, i, row_elems), weight);
#pragma unroll
            for (int k = 0; k < kPackElems<T>; ++k) x[k] *= factor * weight[k];
            store_maybe(aligned, out + row * row_elems, i, row_elems, PackOf<T>::of_floats(x));
          }
        }
      });
  barrier.end_call();
}
