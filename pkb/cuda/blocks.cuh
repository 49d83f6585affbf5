// Blocks of a tensor that move between ranks as they are: all-gathers, all-to-alls and their relatives.
//
// A block is seen as units, Unit being the widest type of up to 16 bytes that divides whatever is contiguous on either
// side. Its units come in rows of `run` that begin `stride` apart in the tensor, and the block of rank r begins `step` r
// into its first row. So an all-gather has step 0 at the source, a cut of a dimension a row for each index before it.

#pragma once

#include "exchange.cuh"

namespace pkb {

struct Layout {
  long long run;
  long long stride;
  long long step;

  // Where unit `i` of the block of `rank` lies in the tensor.
  __device__ long long place(unsigned i, int rank) const {
    const unsigned width = static_cast<unsigned>(run);
    return static_cast<long long>(i / width) * stride + rank * step + i % width;
  }
  // Whether it lies there at all: the last blocks of a cut that does not come out even end beyond their row.
  __device__ bool exists(unsigned i, int rank) const {
    return rank * step + i % static_cast<unsigned>(run) < stride;
  }
};
static_assert(sizeof(Layout) == 24, "passed from Python as three integers");

// Symmetric buffer: two halves of a slot of block_units a rank. Own blocks go straight from `in` to `out`, the others
// into the slot of their source at their owner, and from there to `out`. What does not exist at the source is zero.
template <class Unit>
__device__ inline void move_blocks(const Peers& peers, const Unit* in, Unit* out, long long block_units,
                                   const Layout& source, const Layout& target, int rank, int world_size,
                                   const char* tag) {
  BlockBarrier barrier(peers, rank, world_size, tag);
  const long long half = call_half(barrier, world_size * block_units);
  const auto slot = [&](int owner, int from) { return buffer_of<Unit>(peers, owner) + half + from * block_units; };
  pipeline(
      barrier, block_units,
      [&](const Range& range) {
        for (int step = 0; step < world_size; ++step) {
          // Every rank begins with itself and goes on to another peer, so that no GPU is written to by all at once.
          const int owner = (rank + step) % world_size;
          Unit* const theirs = slot(owner, rank);
          copy_items(
              range,
              [&](long long i) {
                return source.exists(i, owner) ? in[source.place(i, owner)] : Unit{};
              },
              [&](long long i, Unit v) {
                if (owner == rank) {
                  out[target.place(i, rank)] = v;
                } else {
                  theirs[i] = v;
                }
              });
        }
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int from = (rank + step) % world_size;
          const Unit* const arrived = slot(rank, from);
          copy_items(
              range, [&](long long i) { return load_shared(arrived + i); },
              [&](long long i, Unit v) { out[target.place(i, from)] = v; });
        }
      });
  barrier.end_call();
}

}  // namespace pkb
