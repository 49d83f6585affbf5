// Does: out = in_src on every rank, bytes moved as they are.
//
// Moves: direct (small, or two ranks): src stores its tensor into the symmetric buffer of every peer, (W-1) n bytes out
//   of src. forwarded (large): the tensor falls into W-1 slices, one a receiver; src sends each to its receiver, which
//   passes it on to the others: n bytes out of src and n (W-2)/(W-1) out of each receiver. SM stores. From its buffer a
//   receiver copies into the result, since a result may not live in symmetric memory.
//
// Protocol: that of `pipeline` (exchange.cuh). direct: send, place. forwarded: send, pass on, place. Halves of the
//   buffer alternate by call; the forwarding stage writes other slices of the same half, which the same argument covers.
//   src may change from call to call: all ranks take part in every barrier whatever their role. Signals count up and
//   stay for the next call. Calls of one rank are in stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes a thread,
//   four loads in flight, chunks of 16 packs a thread.
//
// Assumes: up to 8 ranks; `in` and `out` on 16-byte boundaries; any number of bytes. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 10 us for
//   64 KiB, 1.6 ms for 512 MiB at 330 GB/s.

#include "exchange.cuh"

using namespace pkb;

struct Slices {
  const Peers& peers;
  long long half;
  long long slice_packs;
  long long num_packs;
  int src;
  int world_size;

  // Receivers are counted from the rank after src.
  __device__ int receiver(int slice) const { return (src + 1 + slice) % world_size; }
  __device__ int slice_of(int rank) const { return (rank - src - 1 + world_size) % world_size; }
  __device__ uint4* packs(int rank) const { return buffer_of<uint4>(peers, rank) + half; }
  // The positions of `range` that exist in `slice`.
  __device__ Range within(const Range& range, int slice) const {
    return {range.first, min(range.end, num_packs - slice * slice_packs), range.stride};
  }
};

extern "C" __global__ void __launch_bounds__(kExchangeThreads, 1)
    broadcast_direct(const __grid_constant__ Peers peers, const unsigned char* __restrict__ in,
                     unsigned char* __restrict__ out, long long num_bytes, int src, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "broadcast direct");
  const long long num_packs = ceil_div(num_bytes, kPackBytes);
  const long long half = call_half(barrier, num_packs);
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        if (rank != src) return;
        copy_items(
            range, [&](long long i) { return load_pack(in, i, num_bytes); },
            [&](long long i, uint4 v) {
              store_pack(out, i, num_bytes, v);
              for (int step = 1; step < world_size; ++step) {
                buffer_of<uint4>(peers, (src + step) % world_size)[half + i] = v;
              }
            });
      },
      [&](const Range& range) {
        if (rank == src) return;
        const uint4* const arrived = buffer_of<uint4>(peers, rank) + half;
        copy_items(
            range, [&](long long i) { return load_shared(arrived + i); },
            [&](long long i, uint4 v) { store_pack(out, i, num_bytes, v); });
      });
  barrier.end_call();
}

extern "C" __global__ void __launch_bounds__(kExchangeThreads, 1)
    broadcast_forwarded(const __grid_constant__ Peers peers, const unsigned char* __restrict__ in,
                        unsigned char* __restrict__ out, long long num_bytes, int src, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "broadcast forwarded");
  const long long num_packs = ceil_div(num_bytes, kPackBytes);
  const int num_slices = world_size - 1;
  const long long slice_packs = ceil_div(num_packs, num_slices);
  const Slices slices{peers, call_half(barrier, num_packs), slice_packs, num_packs, src, world_size};
  pipeline(
      barrier, slice_packs,
      [&](const Range& range) {
        if (rank != src) return;
        for (int slice = 0; slice < num_slices; ++slice) {
          const long long offset = slice * slice_packs;
          uint4* const theirs = slices.packs(slices.receiver(slice)) + offset;
          copy_items(
              slices.within(range, slice), [&](long long i) { return load_pack(in, offset + i, num_bytes); },
              [&](long long i, uint4 v) {
                theirs[i] = v;
                store_pack(out, offset + i, num_bytes, v);
              });
        }
      },
      [&](const Range& range) {
        if (rank == src) return;
        const int slice = slices.slice_of(rank);
        const long long offset = slice * slice_packs;
        copy_items(
            slices.within(range, slice), [&](long long i) { return load_shared(slices.packs(rank) + offset + i); },
            [&](long long i, uint4 v) {
              store_pack(out, offset + i, num_bytes, v);
              for (int step = 1; step < num_slices; ++step) {
                slices.packs(slices.receiver((slice + step) % num_slices))[offset + i] = v;
              }
            });
      },
      [&](const Range& range) {
        if (rank == src) return;
        for (int step = 1; step < num_slices; ++step) {
          const int slice = (slices.slice_of(rank) + step) % num_slices;
          const long long offset = slice * slice_packs;
          copy_items(
              slices.within(range, slice), [&](long long i) { return load_shared(slices.packs(rank) + offset + i); },
              [&](long long i, uint4 v) { store_pack(out, offset + i, num_bytes, v); });
        }
      });
  barrier.end_call();
}
