// Does: out[t] = log sum exp over all ranks' columns of x[t,.], minus x[t, target[t]], in float, rounded once.
//
// Moves: three floats a token (maximum, sum of exponentials, target's logit) to every peer, 16 T (W-1) bytes out over the
//   link by SM stores. The logits are read once.
//
// Protocol: that of `pipeline_of` (exchange.cuh) with two stages, summarize and combine: a BlockBarrier between them publishes
//   the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: a tile is 1 to 16 rows, shared by the 16 warps of a block; up to 128 blocks, at most one an SM, so that all are
//   resident, walk over the tiles. A chunk is 4 tiles of a block: while one is consumed, the next is on the link.
//
// Assumes: float, bfloat16 or half, int64 targets; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries. Any number of columns: rows that do
//   not begin on 16-byte boundaries are read element by element. Checked in solution.py.
//
// Speed: bound by the barrier for few tokens, by HBM for many. Predicted for two H200, not measured: about 12 us for 8192 x
//   256, 0.3 ms for 8192 x 65536 of bfloat16 at 4 TB/s.

#include "exchange.cuh"
#include "reduce.cuh"

using namespace pkb;

constexpr int kWarps = kExchangeThreads / kWarpThreads;
constexpr int kChunkTiles = 4;

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// Some columns of a row: their maximum, the sum of exp(x - maximum), and the target's logit, 0 where it is elsewhere.
struct Summary {
  float largest;
  float sum;
  float target;

  __device__ void join(const Summary& other) {
    const float both = fmaxf(largest, other.largest);
    // Nothing on either side, or nothing but minus infinity: the difference would be NaN.
    if (both != minus_infinity()) {
      sum = sum * __expf(largest - both) + other.sum * __expf(other.largest - both);
      largest = both;
    }
    target += other.target;
  }
};

template <class T>
__device__ inline Summary summarize(const T* row, long long num_columns, bool aligned, long long target, int lane,
                                    int lanes) {
  Summary all{minus_infinity(), 0.0f, 0.0f};
  copy_items(
      Range{lane, ceil_div(num_columns, kPackElems<T>), lanes},
      [&](long long i) { return load_maybe(aligned, row, i, num_columns); },
      [&](long long i, uint4 v) {
        float x[kPackElems<T>];
        PackOf<T>::to_floats(v, x);
        const long long first = i * kPackElems<T>;
        Summary here{minus_infinity(), 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < kPackElems<T>; ++k) {
          if (first + k >= num_columns) x[k] = minus_infinity();
          if (first + k == target) here.target = x[k];
          here.largest = fmaxf(here.largest, x[k]);
        }
        if (here.largest != minus_infinity()) {
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) here.sum += __expf(x[k] - here.largest);
        }
        all.join(here);
      });
  return all;
}

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    cross_entropy(const __grid_constant__ Peers peers, const T* __restrict__ logits,
                  const long long* __restrict__ targets, T* __restrict__ out, long long num_rows,
                  long long num_columns, int tile_rows, int rank, int world_size) {
  __shared__ Summary warp_parts[kWarps];
  BlockBarrier barrier(peers, rank, world_size, "vocab_parallel_cross_entropy_loss");
  const long long half = call_half(barrier, world_size * num_rows);
  const auto slot = [&](int owner, int source) { return buffer_of<float4>(peers, owner) + half + source * num_rows; };
  const int warps_per_row = kWarps / tile_rows;
  const int lanes = warps_per_row * kWarpThreads;
  const int my_row = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const bool aligned = num_columns % kPackElems<T> == 0;
  pipeline_of<kChunkTiles>(
      barrier, tiles_of(ceil_div(num_rows, tile_rows)),
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          const long long row = tile * tile_rows + my_row;
          Summary part{minus_infinity(), 0.0f, 0.0f};
          if (row < num_rows) {
            const long long target = targets[row] - rank * num_columns;
            part = summarize(logits + row * num_columns, num_columns, aligned, target, lane, lanes);
          }
#pragma unroll
          for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) {
            part.join(Summary{__shfl_xor_sync(0xffffffffu, part.largest, mask),
                              __shfl_xor_sync(0xffffffffu, part.sum, mask),
                              __shfl_xor_sync(0xffffffffu, part.target, mask)});
          }
          if (threadIdx.x % kWarpThreads == 0) warp_parts[threadIdx.x / kWarpThreads] = part;
          __syncthreads();
          if (row < num_rows && lane < world_size) {
            Summary whole = warp_parts[my_row * warps_per_row];
            for (int k = 1; k < warps_per_row; ++k) whole.join(warp_parts[my_row * warps_per_row + k]);
            slot(lane, rank)[row] = make_float4(whole.largest, whole.sum, whole.target, 0.0f);
          }
          // The next tile writes the parts anew.
          __syncthreads();
        }
      },
      [&](const Range& tiles) {
        for (long long tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
          const long long row = tile * tile_rows + threadIdx.x;
          if (threadIdx.x >= tile_rows || row >= num_rows) continue;
          Summary whole{minus_infinity(), 0.0f, 0.0f};
          for (int s = 0; s < world_size; ++s) {
            const float4 part = slot(rank, s)[row];
            whole.join(Summary{part.x, part.y, part.z});
          }
          out[row] = static_cast<T>(logf(whole.sum) + whole.largest - whole.target);
        }
      });
  barrier.end_call();
}
