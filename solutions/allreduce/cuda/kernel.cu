// Does: out = sum over ranks s of in_s, elementwise, in the dtype of the tensor; added in float in rank order, rounded
//   once, hence the same bits on every rank.
//
// Moves: one_shot (small): every rank stores its whole tensor into a slot of every peer, (W-1) n e bytes out over the
//   link, and adds up what has arrived. two_shot (large): every rank stores slice s of its tensor into a slot of rank
//   s, adds up the slice it owns, and loads the peers' sums straight into its result: 2 n e (W-1)/W bytes. Stores go
//   out without waiting for an answer; the loads of the second half save a copy out of symmetric memory, since a
//   result may not live there. SM stores and loads of 16 bytes.
//
// Protocol: BlockBarrier (signal.cuh): block b of each rank meets block b of the others, and block b handles the
//   same packs on every rank and in every phase. Signals count up and stay for the next call.
//   one_shot: stores into slot `rank` of a half of the peers' buffers, barrier, local loads. Halves alternate by
//   call. Call k+2 may overwrite the half of call k on rank p: block b only got to call k+2 by passing the barrier of
//   call k+1, which block b of p announced after its kernel of call k had ended, reads included.
//   two_shot: iteration t pushes chunk t, adds up chunk t-1 and pulls chunk t-2, with a barrier between iterations:
//   that barrier publishes pushes to the adding rank and sums to the pulling ones. Call k+1 may push over call k's
//   slots: the last chunk was added up before the last barrier of call k, which every rank has passed. It may write
//   its sums over call k's: it does so after its own first barrier, which a peer announces only when its kernel of
//   call k, pulls included, has ended.
//   Calls of one rank are in stream order; all ranks make them in the same order. Shapes and dtypes have buffers of
//   their own, so calls of different ones share no state.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident; 16 blocks fill the link, the
//   others are there for the sums. A pack of 16 bytes a thread, four loads in flight. A chunk is 16 packs a thread.
//
// Assumes: float, bfloat16 or half; up to 8 ranks; `in` and `out` on 16-byte boundaries; any number of elements; the
//   same number of blocks on every rank. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Not measured.

#include "memory.cuh"
#include "signal.cuh"

using namespace pkb;

constexpr int kThreads = 512;
constexpr int kMaxBlocks = 128;
constexpr int kBatchPacks = 4;
constexpr int kChunkPacks = 16;  // of a thread
// Symmetric buffer: the blocks' signals, then packs.
constexpr int kSignalBytes = kMaxBlocks * sizeof(BlockSignals);
static_assert(kSignalBytes == 8192, "SIGNAL_BYTES of solution.py");

__device__ inline uint4* packs_of(const Peers& peers, int rank) {
  return reinterpret_cast<uint4*>(static_cast<char*>(peers.at[rank]) + kSignalBytes);
}

// Sum of one pack a rank, `load(s)` giving that of rank s. All loads are in flight before the first addition.
template <class T, class Load>
__device__ inline uint4 sum_over_ranks(int world_size, Load load) {
  uint4 part[kMaxRanks];
#pragma unroll
  for (int s = 0; s < kMaxRanks; ++s) {
    if (s < world_size) part[s] = load(s);
  }
  float total[kPackElems<T>], x[kPackElems<T>];
  PackOf<T>::to_floats(part[0], total);
#pragma unroll
  for (int s = 1; s < kMaxRanks; ++s) {
    if (s < world_size) {
      PackOf<T>::to_floats(part[s], x);
#pragma unroll
      for (int k = 0; k < kPackElems<T>; ++k) total[k] += x[k];
    }
  }
  return PackOf<T>::of_floats(total);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    one_shot(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out, long long num_elems,
             int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "allreduce one_shot");
  const long long num_packs = ceil_div(num_elems, kPackElems<T>);
  const long long first = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  const long long stride = gridDim.x * static_cast<long long>(kThreads);
  const long long half = (barrier.calls() & 1) * world_size * num_packs;

  copy_packs<kBatchPacks>(
      first, num_packs, stride, [&](long long i) { return load_pack(in, i, num_elems); },
      [&](long long i, uint4 v) {
        for (int step = 1; step < world_size; ++step) {
          packs_of(peers, (rank + step) % world_size)[half + rank * num_packs + i] = v;
        }
      });
  barrier.sync();
  const uint4* arrived = packs_of(peers, rank) + half;
  for (long long i = first; i < num_packs; i += stride) {
    const uint4 sum = sum_over_ranks<T>(world_size, [&](int s) {
      return s == rank ? load_pack(in, i, num_elems) : load_shared(arrived + s * num_packs + i);
    });
    store_pack(out, i, num_elems, sum);
  }
  barrier.end_call();
}

// Slice s of the tensor: packs [s * slice_packs, (s+1) * slice_packs), as far as there are any. Position i in it is
// handled by the same block on every rank. Symmetric buffer: W slots of slice_packs for what arrives, then
// slice_packs of sums.
template <class T>
struct TwoShot {
  const Peers& peers;
  const T* in;
  T* out;
  long long num_elems;
  long long num_packs;
  long long slice_packs;
  int rank;
  int world_size;

  __device__ long long packs_in(int slice) const { return min(slice_packs, num_packs - slice * slice_packs); }
  __device__ uint4* slot(int owner, int source) const { return packs_of(peers, owner) + source * slice_packs; }
  __device__ uint4* sums(int owner) const { return packs_of(peers, owner) + world_size * slice_packs; }

  __device__ void push(long long first, long long end, long long stride) const {
    for (int step = 1; step < world_size; ++step) {
      // Every rank begins with another peer, so that no link into a GPU is asked by all at once.
      const int owner = (rank + step) % world_size;
      const long long offset = owner * slice_packs;
      uint4* const theirs = slot(owner, rank);
      copy_packs<kBatchPacks>(
          first, min(end, packs_in(owner)), stride,
          [&](long long i) { return load_pack(in, offset + i, num_elems); },
          [&](long long i, uint4 v) { theirs[i] = v; });
    }
  }

  __device__ void add_up(long long first, long long end, long long stride) const {
    const long long offset = rank * slice_packs;
    const long long last = min(end, packs_in(rank));
    for (long long i = first; i < last; i += stride) {
      const uint4 sum = sum_over_ranks<T>(world_size, [&](int s) {
        return s == rank ? load_pack(in, offset + i, num_elems) : load_shared(slot(rank, s) + i);
      });
      sums(rank)[i] = sum;
      store_pack(out, offset + i, num_elems, sum);
    }
  }

  __device__ void pull(long long first, long long end, long long stride) const {
    for (int step = 1; step < world_size; ++step) {
      const int owner = (rank + step) % world_size;
      const long long offset = owner * slice_packs;
      const uint4* const theirs = sums(owner);
      copy_packs<kBatchPacks>(
          first, min(end, packs_in(owner)), stride, [&](long long i) { return load_shared(theirs + i); },
          [&](long long i, uint4 v) { store_pack(out, offset + i, num_elems, v); });
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    two_shot(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out, long long num_elems,
             int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "allreduce two_shot");
  const long long num_packs = ceil_div(num_elems, kPackElems<T>);
  const long long slice_packs = ceil_div(num_packs, world_size);
  const TwoShot<T> job{peers, in, out, num_elems, num_packs, slice_packs, rank, world_size};
  const long long stride = gridDim.x * static_cast<long long>(kThreads);
  const long long chunk_packs = stride * kChunkPacks;
  const long long num_chunks = ceil_div(slice_packs, chunk_packs);
  const long long mine = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  const auto begin = [&](long long chunk) { return chunk * chunk_packs + mine; };
  const auto end = [&](long long chunk) { return min((chunk + 1) * chunk_packs, slice_packs); };

  for (long long t = 0; t < num_chunks + 2; ++t) {
    if (t < num_chunks) job.push(begin(t), end(t), stride);
    if (t >= 1 && t - 1 < num_chunks) job.add_up(begin(t - 1), end(t - 1), stride);
    if (t >= 2) job.pull(begin(t - 2), end(t - 2), stride);
    if (t < num_chunks + 1) barrier.sync();
  }
  barrier.end_call();
}
