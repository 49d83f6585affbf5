// Does: out[i] = row indices[i] mod R of the shard of rank indices[i] / R, bytes moved as they are.
//
// Moves: every rank stores its indices into a slot of every peer, 8 Q (W-1) bytes; owners store the rows that they are
//   asked for into a slot of the asking rank, which puts them into its result: Q D e (W-1)/W bytes in over the link if
//   owners are asked alike, a row as often as it is asked for. Own rows go straight to their places. SM stores.
//
// Protocol: nobody knows how many rows the others ask for, and the host does not wait to find out: each block first
//   stores the own number into every peer, and behind the first barrier all know the largest one, hence the number of
//   chunks. Iteration t asks for the rows of chunk t, serves chunk t-1 and places chunk t-2, with a BlockBarrier
//   (signal.cuh) between iterations, which publishes requests to owners and rows to askers. Block b of a rank has to do
//   with block b of the others only.
//   Within a call: requests and rows have two slots each, which alternate by chunk. Who stores chunk t over chunk t-2 has
//   passed the barrier behind the iteration in which the peer read that.
//   Between calls: two halves of counts alternate by call. Call k+2 may overwrite the half of call k on rank p: it has
//   passed the first barrier of call k+1, which p announced after its kernel of call k had ended. Requests of call k+1
//   come behind the last barrier of call k, behind which nothing is served; rows of call k+1 behind its first barrier.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident; as many on every rank, whatever it
//   asks for. A chunk is up to 128 KiB of rows of a block: while one is served, the next is asked for and the one before
//   is placed. Places of the result are dealt out to blocks one by one, so that few rows keep all of them busy. A unit a
//   thread, four loads in flight.
//
// Assumes: any dtype; up to 8 ranks; R, D and dtype equal on all; int64 indices between 0 and W R - 1; `shard` and `out`
//   on 16-byte boundaries; rows of fewer than 2^28 units. Unit is as wide as rows allow, up to 16 bytes. Checked in
//   solution.py, but for the values of indices.
//
// Speed: bound by two barriers for few rows, by the link for many. Predicted for two H200, not measured: about 15 us for
//   1024 rows of 1024 bfloat16, 0.5 ms for 2^18 of 512, of which half cross the link at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

constexpr int kMaxChunkRows = 256;  // of a block

// Rows that a block copies next, collected by its threads in any order.
template <class Unit>
struct RowList {
  struct Row {
    const Unit* from;
    Unit* to;
  };
  Row rows[kMaxChunkRows * kMaxRanks];
  unsigned num_rows;

  // Also ends the reads of the list before.
  __device__ void clear() {
    __syncthreads();
    if (threadIdx.x == 0) num_rows = 0;
    __syncthreads();
  }
  __device__ void add(const Unit* from, Unit* to) { rows[atomicAdd(&num_rows, 1u)] = {from, to}; }
  __device__ void copy(unsigned row_units) const {
    __syncthreads();
    copy_items(
        Range{threadIdx.x, static_cast<long long>(num_rows) * row_units, blockDim.x},
        [&](long long i) {
          const unsigned unit = static_cast<unsigned>(i);
          return load_shared(rows[unit / row_units].from + unit % row_units);
        },
        [&](long long i, Unit v) {
          const unsigned unit = static_cast<unsigned>(i);
          rows[unit / row_units].to[unit % row_units] = v;
        });
  }
};

// Symmetric buffer: two halves of [W, kMaxBlocks] counts, requests [2, blocks, W, chunk_rows], rows [2, blocks,
// chunk_rows, row_units].
template <class Unit>
struct Lookup {
  const Peers& peers;
  const long long* indices;
  const Unit* shard;
  Unit* out;
  long long num_asked;
  long long num_rows;
  long long row_units;
  int chunk_rows;
  int rank;
  int world_size;

  __device__ long long* count(int owner, int source, long long parity) const {
    return buffer_of<long long>(peers, owner) + (parity * world_size + source) * kMaxBlocks + blockIdx.x;
  }
  __device__ long long ring(long long chunk) const { return (chunk & 1) * gridDim.x + blockIdx.x; }
  __device__ long long* requests(int owner, int source, long long chunk) const {
    return count(owner, 0, 2) - blockIdx.x + (ring(chunk) * world_size + source) * chunk_rows;
  }
  __device__ Unit* arrived(int asker, long long chunk) const {
    long long* const end = count(asker, 0, 2) - blockIdx.x + 2ll * gridDim.x * world_size * chunk_rows;
    return reinterpret_cast<Unit*>(end) + ring(chunk) * chunk_rows * row_units;
  }
  __device__ long long position(long long chunk, int place) const {
    return (chunk * chunk_rows + place) * gridDim.x + blockIdx.x;
  }
  // The own row of an index, nullptr where it is another rank's.
  __device__ const Unit* own_row(long long index) const {
    const long long row = index - rank * num_rows;
    return row >= 0 && row < num_rows ? shard + row * row_units : nullptr;
  }

  __device__ void ask(RowList<Unit>& list, long long chunk) const {
    list.clear();
    for (int place = threadIdx.x; place < chunk_rows; place += blockDim.x) {
      const long long i = position(chunk, place);
      if (i >= num_asked) break;
      const long long index = indices[i];
      for (int step = 1; step < world_size; ++step) {
        requests((rank + step) % world_size, rank, chunk)[place] = index;
      }
      const Unit* const row = own_row(index);
      if (row != nullptr) list.add(row, out + i * row_units);
    }
    list.copy(row_units);
  }

  __device__ void serve(RowList<Unit>& list, long long chunk, const long long* counts) const {
    list.clear();
    for (int i = threadIdx.x; i < chunk_rows * (world_size - 1); i += blockDim.x) {
      // Every rank begins with another asker, so that no GPU is written to by all at once.
      const int asker = (rank + 1 + i / chunk_rows) % world_size;
      const int place = i % chunk_rows;
      if (position(chunk, place) >= counts[asker]) continue;
      const auto* const request = reinterpret_cast<const unsigned long long*>(requests(rank, asker, chunk) + place);
      const Unit* const row = own_row(static_cast<long long>(load_shared(request)));
      if (row != nullptr) list.add(row, arrived(asker, chunk) + place * row_units);
    }
    list.copy(row_units);
  }

  __device__ void place(RowList<Unit>& list, long long chunk) const {
    list.clear();
    for (int place = threadIdx.x; place < chunk_rows; place += blockDim.x) {
      const long long i = position(chunk, place);
      if (i >= num_asked) break;
      if (own_row(indices[i]) == nullptr) list.add(arrived(rank, chunk) + place * row_units, out + i * row_units);
    }
    list.copy(row_units);
  }
};

template <class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    look_up(const __grid_constant__ Peers peers, const long long* __restrict__ indices,
            const Unit* __restrict__ shard, Unit* __restrict__ out, long long num_asked, long long num_rows,
            long long row_units, int chunk_rows, int rank, int world_size) {
  __shared__ RowList<Unit> list;
  __shared__ long long counts[kMaxRanks];
  BlockBarrier barrier(peers, rank, world_size, "embedding_lookup");
  const Lookup<Unit> job{peers, indices, shard, out, num_asked, num_rows, row_units, chunk_rows, rank, world_size};
  const long long parity = call_half(barrier, 1);
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < world_size) *job.count(peer, rank, parity) = num_asked;
  job.ask(list, 0);
  barrier.sync();
  if (peer < world_size) {
    const auto* const count = reinterpret_cast<const unsigned long long*>(job.count(rank, peer, parity));
    counts[peer] = static_cast<long long>(load_shared(count));
  }
  __syncthreads();
  long long largest = 0;
  for (int s = 0; s < world_size; ++s) largest = max(largest, counts[s]);
  const long long num_chunks = ceil_div(largest, static_cast<long long>(gridDim.x) * chunk_rows);
  if (num_chunks > 0) {
    for (long long t = 1; t < num_chunks + 2; ++t) {
      if (t < num_chunks) job.ask(list, t);
      if (t <= num_chunks) job.serve(list, t - 1, counts);
      if (t >= 2) job.place(list, t - 2);
      if (t <= num_chunks) barrier.sync();
    }
  }
  barrier.end_call();
}
