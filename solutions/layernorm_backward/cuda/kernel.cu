// Does: d_gamma[h] = sum of dY X_hat, d_beta[h] = sum of dY, over the rows of all ranks, in float; ranks added in rank order,
//   rounded once, hence the same bits on every rank.
//
// Moves: every rank stores 8 H bytes of sums into a slot of every peer, (W-1) 8 H bytes out over the link. X_hat and dY are
//   read once from HBM. SM stores.
//
// Protocol: that of `pipeline_of` (exchange.cuh) with two stages, add rows and add ranks: a BlockBarrier between them
//   publishes the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: a tile is 1 to 8 packs of columns and all rows; the 512 threads of a block share its rows. Up to 128 blocks, at most
//   one an SM, so that all are resident. A chunk is 4 tiles of a block.
//
// Assumes: float, bfloat16 or half, one dtype and row length on all ranks, any number of rows each; up to 8 ranks; tensors on
//   16-byte boundaries. Rows that do not begin on such boundaries are read element by element. Checked in solution.py.
//
// Speed: bound by the barrier for few rows, by HBM for many. Predicted for two H200, not measured: about 15 us for 1024 x
//   1024, 0.3 ms for 32768 x 8192 of bfloat16 at 4 TB/s.

#include "exchange.cuh"

using namespace pkb;

constexpr int kChunkTiles = 4;
constexpr int kBatchRows = 2;

// Slot of a rank in a half: [2, row_packs * kPackElems] floats, gamma first.
template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    add_gradients(const __grid_constant__ Peers peers, const T* __restrict__ x_hat, const T* __restrict__ dy,
                  T* __restrict__ out, long long num_rows, long long row_elems, int tile_packs, int rank,
                  int world_size) {
  constexpr int kElems = kPackElems<T>;
  // By thread, so that neighbors share no bank: [2 kElems][threads].
  __shared__ float parts[kExchangeThreads * 2];
  BlockBarrier barrier(peers, rank, world_size, "layernorm_backward");
  const long long row_packs = ceil_div(row_elems, kElems);
  const bool aligned = row_elems % kElems == 0;
  const long long half = call_half(barrier, world_size * 2 * row_packs * kElems);
  const auto slot = [&](int owner, int source) {
    return buffer_of<float>(peers, owner) + half + source * 2 * row_packs * kElems;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int row_lanes = kExchangeThreads / tile_packs;
  pipeline_of<kChunkTiles>(
      barrier, tiles_of(ceil_div(row_packs, tile_packs)),
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          const long long pack = tile * tile_packs + thread % tile_packs;
          float gamma[kElems] = {}, beta[kElems] = {};
          if (pack < row_packs) {
#pragma unroll kBatchRows
            for (long long row = thread / tile_packs; row < num_rows; row += row_lanes) {
              float x[kElems], y[kElems];
              PackOf<T>::to_floats(load_maybe(aligned, x_hat + row * row_elems, pack, row_elems), x);
              PackOf<T>::to_floats(load_maybe(aligned, dy + row * row_elems, pack, row_elems), y);
#pragma unroll
              for (int k = 0; k < kElems; ++k) {
                gamma[k] += x[k] * y[k];
                beta[k] += y[k];
              }
            }
          }
#pragma unroll
          for (int k = 0; k < kElems; ++k) {
            parts[thread] = gamma[k];
            parts[kExchangeThreads + thread] = beta[k];
            __syncthreads();
            // Threads with the same pack lie tile_packs apart; both are powers of two.
            for (int active = kExchangeThreads / 2; active >= tile_packs; active /= 2) {
              if (thread < active) {
                parts[thread] += parts[thread + active];
                parts[kExchangeThreads + thread] += parts[kExchangeThreads + thread + active];
              }
              __syncthreads();
            }
            if (thread < tile_packs && pack < row_packs) {
              for (int owner = 0; owner < world_size; ++owner) {
                slot(owner, rank)[pack * kElems + k] = parts[thread];
                slot(owner, rank)[(row_packs + pack) * kElems + k] = parts[kExchangeThreads + thread];
              }
            }
            __syncthreads();
          }
        }
      },
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          for (int i = thread; i < 2 * tile_packs * kElems; i += kExchangeThreads) {
            const int which = i / (tile_packs * kElems);
            const long long column = tile * tile_packs * kElems + i % (tile_packs * kElems);
            if (column >= row_elems) continue;
            float total = 0.0f;
            for (int s = 0; s < world_size; ++s) total += slot(rank, s)[which * row_packs * kElems + column];
            out[which * row_elems + column] = static_cast<T>(total);
          }
        }
      });
  barrier.end_call();
}
