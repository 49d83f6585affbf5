// Does: the slab of rank r: the last p rows of x of rank r - 1, x, the first p rows of x of rank r + 1; zeros beyond the
//   first and the last rank. (The convolution of the slab is cuDNN's.)
//
// Moves: every rank stores its first and last p rows into a slot of its neighbors, 2 B C p Wd e bytes out over the link,
//   one half of that at the image's edges; x goes from HBM to HBM meanwhile. SM stores.
//
// Protocol: one BlockBarrier (signal.cuh) between storing rows and placing those that have arrived: block b handles the same
//   units of a halo on every rank. Halves of the slots alternate by call: call k+2 may overwrite the half of call k on
//   rank n, having passed the barrier of call k+1, which n announced after its kernel of call k had ended. Signals
//   count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident; as many on every rank, however many
//   rows it has. A unit a thread, four loads in flight. The slab's inner rows are copied between the stores and the
//   barrier, which hides the way over the link.
//
// Assumes: any dtype; up to 8 ranks; B, C, Wd and p equal on all, at least p rows each; x and slab on 16-byte boundaries
//   and of fewer than 2^31 units. Unit is as wide as rows allow, up to 16 bytes. Checked in solution.py.
//
// Speed: the kernel by HBM, the whole by cuDNN's convolution. Predicted for two H200, not measured: about 30 us beside
//   0.7 ms for 1280 channels of 128 x 128, 0.08 ms beside 0.85 ms for 512 channels of 128 x 1024.

#include "blocks.cuh"

using namespace pkb;

// Planes, one for each image and channel, are cut into parts along their rows; a halo is one such part of every plane.
template <class Unit>
struct Planes {
  Unit* first;
  long long run;     // units of the part
  long long stride;  // units of a plane

  __device__ Unit* at(long long i) const {
    const unsigned width = static_cast<unsigned>(run);
    const unsigned plane = static_cast<unsigned>(i) / width;
    return first + plane * stride + static_cast<unsigned>(i) % width;
  }
};

template <class Unit>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    extend(const __grid_constant__ Peers peers, const Unit* __restrict__ x, Unit* __restrict__ slab,
           long long num_planes, long long halo_run, long long plane_run, int rank, int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "conv2d_boundary_exchange");
  const long long halo_units = num_planes * halo_run;
  const long long half = call_half(barrier, 2 * halo_units);
  const long long slab_run = plane_run + 2 * halo_run;
  const Range share = share_of(halo_units);
  // Side 0 is above, side 1 below. The slot of a side receives what becomes the halo there.
  const auto neighbor = [&](int side) { return side == 0 ? rank - 1 : rank + 1; };
  const auto exists = [&](int side) { return neighbor(side) >= 0 && neighbor(side) < world_size; };
  const auto slot = [&](int owner, int side) { return buffer_of<Unit>(peers, owner) + half + side * halo_units; };

  for (int side = 0; side < 2; ++side) {
    if (!exists(side)) continue;
    const Planes<const Unit> edge{x + side * (plane_run - halo_run), halo_run, plane_run};
    Unit* const theirs = slot(neighbor(side), 1 - side);
    copy_items(
        share, [&](long long i) { return *edge.at(i); }, [&](long long i, Unit v) { theirs[i] = v; });
  }
  const Planes<Unit> inner{slab + halo_run, plane_run, slab_run};
  copy_items(
      share_of(num_planes * plane_run), [&](long long i) { return x[i]; },
      [&](long long i, Unit v) { *inner.at(i) = v; });
  barrier.sync();
  for (int side = 0; side < 2; ++side) {
    const Planes<Unit> halo{slab + side * (slab_run - halo_run), halo_run, slab_run};
    const bool arrives = exists(side);
    const Unit* const arrived = slot(rank, side);
    copy_items(
        share, [&](long long i) { return arrives ? load_shared(arrived + i) : Unit{}; },
        [&](long long i, Unit v) { *halo.at(i) = v; });
  }
  barrier.end_call();
}
