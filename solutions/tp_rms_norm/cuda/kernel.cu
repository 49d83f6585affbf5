// Does: v[t] = (1/H) sum over all ranks and columns of x[t,.]^2; y = x rsqrt(v + epsilon) in float, rounded to the
//   dtype; out = weight y, rounded again. Sums in float, over the ranks in rank order: the same v on every rank.
//
// Moves: one 8-byte message a row to every peer, 8 T (W-1) bytes out over the link by SM stores. x is read from HBM
//   once: a row stays in shared memory between its sum and its scaling, as far as it fits.
//
// Protocol: messages (signal.cuh): a row's partial sum and a tag travel in one 8-byte store into the reader's slot
//   (half, source rank, row), so that whoever sees the tag has the sum; no fence. The tag is the number of the call,
//   kept on the device by each block for itself and equal on all ranks, since they make the same calls; slots begin as
//   zero and calls as 1. Halves alternate by call. Call k+2 may overwrite the half of call k on rank p: this
//   rank's kernel of call k+1 has ended, so it has received a message of p's call k+1, and p's kernel of call k, reads
//   included, had ended before that one began. Calls of one rank are in stream order; shapes and dtypes have buffers
//   of their own. A block sends all sums of a tile before it waits for any, and all ranks walk their tiles in the
//   same order, so no rank waits for a message that needs one of its own later ones.
//
// Splits: a tile is 1, 2, 4 or 8 rows, shared by the 8 warps of a block; up to three blocks an SM, all resident, walk
//   over the tiles. While one block waits for the peers' sums the two beside it read or write.
//
// Assumes: x, weight and out of one dtype: float, bfloat16 or half; up to 8 ranks; x, weight and out start on 16-byte
//   boundaries; any number of rows and columns (rows that do not start on such a boundary are read element by
//   element); the same number of blocks on every rank. Checked in solution.py.
//
// Speed: bound by HBM for many rows, by one message for few. Not measured.

#include "memory.cuh"
#include "reduce.cuh"
#include "signal.cuh"

using namespace pkb;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kBlocksPerSm = 3;
constexpr int kMaxBlocks = 1024;
constexpr int kMaxTileRows = kWarps;
// The most loads in flight that leave three blocks an SM without spilled registers.
template <class T>
constexpr int kBatchPacks = sizeof(T) == 4 ? 2 : 4;
// Symmetric buffer: the blocks' signals, then two halves of slots [W, T].
constexpr int kSignalBytes = kMaxBlocks * sizeof(BlockSignals);
static_assert(kSignalBytes == 65536, "SIGNAL_BYTES of solution.py");
static_assert(kMaxTileRows * kMaxRanks <= kThreads, "one thread a message");

struct Exchange {
  const Peers& peers;
  long long num_rows;
  unsigned call;
  int rank;
  int world_size;

  __device__ unsigned long long* slot(int reader, int source, long long row) const {
    char* const base = static_cast<char*>(peers.at[reader]) + kSignalBytes;
    return reinterpret_cast<unsigned long long*>(base) + ((call & 1) * world_size + source) * num_rows + row;
  }
  __device__ void send(int peer, long long row, float sum) const { store_message(slot(peer, rank, row), sum, call); }
  __device__ float receive(int peer, long long row) const {
    return wait_message(slot(rank, peer, row), call, "tp_rms_norm row sums", rank, peer);
  }
};

// One row, as the threads of its warps see it: thread `lane` of `num_lanes` has packs lane, lane + num_lanes, ...
template <class T>
struct Row {
  const T* x;
  T* out;
  uint4* kept;  // the first `num_kept` packs, in shared memory: each thread reads back only what it wrote
  long long num_elems;
  long long num_packs;
  int num_kept;
  int lane;
  int num_lanes;
  bool aligned;

  __device__ uint4 load(const T* elems, long long i) const {
    return aligned ? load_pack(elems, i, num_elems) : load_elems(elems, i, num_elems);
  }

  __device__ float sum_of_squares() const {
    float sum = 0.0f;
    copy_packs<kBatchPacks<T>>(
        lane, num_packs, num_lanes, [&](long long i) { return load(x, i); },
        [&](long long i, uint4 v) {
          if (i < num_kept) kept[i] = v;
          float e[kPackElems<T>];
          PackOf<T>::to_floats(v, e);
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) sum += e[k] * e[k];
        });
    return sum;
  }

  __device__ void scale(const T* weight, float factor) const {
    copy_packs<kBatchPacks<T>>(
        lane, num_packs, num_lanes, [&](long long i) { return i < num_kept ? kept[i] : load(x, i); },
        [&](long long i, uint4 v) {
          float y[kPackElems<T>], w[kPackElems<T>];
          PackOf<T>::to_floats(v, y);
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) y[k] *= factor;
          // The contract rounds to the dtype before the product with the weight, and once more after it.
          PackOf<T>::to_floats(PackOf<T>::of_floats(y), y);
          PackOf<T>::to_floats(load_pack(weight, i, num_elems), w);
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) y[k] *= w[k];
          const uint4 result = PackOf<T>::of_floats(y);
          if (aligned) {
            store_pack(out, i, num_elems, result);
          } else {
            store_elems(out, i, num_elems, result);
          }
        });
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    rms_norm(const __grid_constant__ Peers peers, const T* __restrict__ x, const T* __restrict__ weight,
             T* __restrict__ out, long long num_rows, long long row_elems, float epsilon, int tile_rows,
             int kept_packs, int rank, int world_size) {
  extern __shared__ uint4 kept[];  // [tile_rows, kept_packs]
  __shared__ float warp_sums[kWarps];
  __shared__ float rank_sums[kMaxTileRows][kMaxRanks];

  BlockSignals* const own = block_signals(peers, rank);
  const unsigned call = load_relaxed(&own->calls) + 1;
  const Exchange exchange{peers, num_rows, call, rank, world_size};
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads;
  const int warps_per_row = kWarps / tile_rows;
  const int row_in_tile = warp / warps_per_row;
  const long long num_tiles = ceil_div(num_rows, tile_rows);

  for (long long tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    const long long row = tile * tile_rows + row_in_tile;
    const bool exists = row < num_rows;
    const Row<T> mine{x + row * row_elems,
                      out + row * row_elems,
                      kept + row_in_tile * kept_packs,
                      row_elems,
                      ceil_div(row_elems, kPackElems<T>),
                      kept_packs,
                      thread - row_in_tile * warps_per_row * kWarpThreads,
                      warps_per_row * kWarpThreads,
                      row_elems * sizeof(T) % kPackBytes == 0};
    const float part = warp_sum(exists ? mine.sum_of_squares() : 0.0f);
    if (thread % kWarpThreads == 0) warp_sums[warp] = part;
    __syncthreads();

    // Thread (peer, row of the tile): the rows of one peer are neighbors, so that their stores share a packet.
    const int peer = thread / tile_rows;
    const int my_row = thread % tile_rows;
    const long long sent_row = tile * tile_rows + my_row;
    if (peer < world_size && sent_row < num_rows) {
      float sum = 0.0f;
      for (int k = 0; k < warps_per_row; ++k) sum += warp_sums[my_row * warps_per_row + k];
      if (peer != rank) {
        exchange.send(peer, sent_row, sum);
        sum = exchange.receive(peer, sent_row);
      }
      rank_sums[my_row][peer] = sum;
    }
    __syncthreads();

    if (exists) {
      float total = 0.0f;
      for (int s = 0; s < world_size; ++s) total += rank_sums[row_in_tile][s];
      const float mean = total / (static_cast<float>(row_elems) * static_cast<float>(world_size));
      mine.scale(weight, rsqrtf(mean + epsilon));
    }
  }
  // Every thread has read the number of calls: each block has at least one tile, and so a __syncthreads, behind it.
  if (thread == 0) own->calls = call;
}
