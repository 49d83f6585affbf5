// Signals between GPUs, and the barrier made of them. System scope throughout: the reader is another GPU.
//
// Three patterns, from the weakest:
//  1. Message: 8 bytes that hold a value and a tag (store_message, wait_message). An aligned 8-byte store arrives
//     whole, so whoever sees the tag has the value, and no fence is needed. Publishes itself and nothing else.
//  2. Signal: store_release after the data, wait_signal before reading it. Publishes all that this thread wrote
//     before, and all that other threads of its block wrote before a __syncthreads that precedes the release.
//  3. BlockBarrier: block b of every rank meets block b of the others; each publishes to all.
//
// Signals count up and are never set back, so no call has to clean up after another and none is a special first
// one: all start at zero, once, before a barrier of the host side. They are compared by signed difference, so that
// they may wrap around.
//
// BlockBarrier. Rank r's own memory holds one BlockSignals a block; `arrived[s]` is how often block b of rank s has
// come to the barrier, written by that block alone, so a plain release store announces it and no atomic is needed.
// `arrived[r]`, the own one, is at the same time the block's memory of how often it has been here. To meet for the
// (n+1)-th time: __syncthreads, so that the whole block's writes come before the release; write n+1 into
// arrived[r] on every rank; wait until all of the own arrived[0..W-1] are at least n+1; __syncthreads, so that the
// whole block's reads come after the acquire. A faster peer may already have announced n+2, never n+3: for that it
// must have seen n+2 from here. All ranks must launch the same grid, of blocks that are all resident at once.
//
// Every wait ends: after PKB_TIMEOUT_NS it prints what it waited for and traps. The time is long, since several
// ranks may share one GPU in slices of milliseconds, or a peer may still be compiling.

#pragma once

#include "memory.cuh"

#ifndef PKB_TIMEOUT_NS
#define PKB_TIMEOUT_NS 10000000000ull
#endif

namespace pkb {

__device__ inline unsigned long long now_ns() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ inline void store_release(unsigned* word, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// For a word that several threads or ranks count up, such as the number of finished tiles.
__device__ inline void add_release(unsigned* word, unsigned value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline unsigned load_acquire(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline unsigned load_relaxed(const unsigned* word) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Out of line: printf takes a stack frame and registers that the waiting kernel should not pay for.
static __device__ __noinline__ void give_up(const char* tag, int rank, int peer, unsigned expected, unsigned seen) {
  printf("pkb: %s: rank %d, block %d waited %llu ms for rank %d: expected %u, seen %u\n", tag, rank,
         static_cast<int>(blockIdx.x), PKB_TIMEOUT_NS / 1000000ull, peer, expected, seen);
  __trap();
}

// Waits until `*word` has reached `target`, and acquires what was published with it. `tag` says in the message
// which wait this is, `peer` who should have written.
__device__ inline void wait_signal(const unsigned* word, unsigned target, const char* tag, int rank, int peer) {
  const unsigned long long start = now_ns();
  // Relaxed while waiting: an acquire empties the SM's L1 each time, at the cost of the blocks beside this one.
  unsigned seen = load_relaxed(word);
  while (static_cast<int>(seen - target) < 0) {
    if (now_ns() - start > PKB_TIMEOUT_NS) give_up(tag, rank, peer, target, seen);
    seen = load_relaxed(word);
  }
  load_acquire(word);
}

__device__ inline void store_message(unsigned long long* slot, float value, unsigned tag) {
  const unsigned long long both = (static_cast<unsigned long long>(tag) << 32) | __float_as_uint(value);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(slot), "l"(both) : "memory");
}

// Waits for the message with this very tag and returns its value.
__device__ inline float wait_message(const unsigned long long* slot, unsigned tag, const char* what, int rank,
                                     int peer) {
  const unsigned long long start = now_ns();
  while (true) {
    unsigned long long both;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(both) : "l"(slot) : "memory");
    const unsigned seen = static_cast<unsigned>(both >> 32);
    if (seen == tag) return __uint_as_float(static_cast<unsigned>(both));
    if (now_ns() - start > PKB_TIMEOUT_NS) give_up(what, rank, peer, tag, seen);
  }
}

// What one block of one rank keeps at the start of the rank's symmetric buffer: element `blockIdx.x` of an array.
struct BlockSignals {
  unsigned arrived[kMaxRanks];
  unsigned calls;  // kernels that this block has finished; for its own use
  unsigned unused[7];
};
static_assert(sizeof(BlockSignals) == 64, "solutions reserve 64 bytes a block");

__device__ inline BlockSignals* block_signals(const Peers& peers, int rank) {
  return static_cast<BlockSignals*>(peers.at[rank]) + blockIdx.x;
}

// Made by all threads of a one-dimensional block of at least kMaxRanks threads, at the start of the kernel.
class BlockBarrier {
 public:
  __device__ BlockBarrier(const Peers& peers, int rank, int world_size, const char* tag)
      : peers_(peers), rank_(rank), world_size_(world_size), tag_(tag) {
    const BlockSignals* own = block_signals(peers, rank);
    epoch_ = load_relaxed(&own->arrived[rank]);
    calls_ = load_relaxed(&own->calls);
  }

  // How many kernels this block had finished when this one began; the same number on every rank.
  __device__ unsigned calls() const { return calls_; }

  __device__ void sync() {
    __syncthreads();
    ++epoch_;
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < world_size_) {
      store_release(&block_signals(peers_, peer)->arrived[rank_], epoch_);
      wait_signal(&block_signals(peers_, rank_)->arrived[peer], epoch_, tag_, rank_, peer);
    }
    __syncthreads();
  }

  // Counts this kernel as finished. After at least one sync, since other threads may not have read `calls` before.
  __device__ void end_call() {
    if (threadIdx.x == 0) block_signals(peers_, rank_)->calls = calls_ + 1;
  }

 private:
  const Peers& peers_;
  const int rank_;
  const int world_size_;
  const char* const tag_;
  unsigned epoch_;
  unsigned calls_;
};

}  // namespace pkb
