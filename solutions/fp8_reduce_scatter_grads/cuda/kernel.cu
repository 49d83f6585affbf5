// Does: a = max|g|; scale = max(history and a, 1e-12) / 448; rec = e4m3(g / scale) scale; out = (1/W) sum over ranks of
//   slice r of rec, added in float in rank order, rounded once.
//
// Moves: every rank stores the codes of slice d and its scale into a slot of rank d: n (W-1)/W bytes out over the link, half
//   of what bfloat16 would take; the owner multiplies out and adds. The gradients are read twice. SM stores.
//
// Protocol: find_largest writes the maximum of each block of the own tensor, the second kernel, next in the stream, makes
//   the scale of them. Then that of `pipeline` (exchange.cuh) with two stages, encode and add: a BlockBarrier between
//   them publishes the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes of input a
//   thread, four loads in flight, chunks of 16 packs a thread.
//
// Assumes: float, bfloat16 or half, a history of bfloat16; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries.
//   Any slice: where slices do not begin on 16-byte boundaries they are read element by element. Checked in fp8_exchange.py.
//
// Speed: bound by launches and barrier below 1 MiB, by link and HBM above. Predicted for two H200, not measured: about 15 us
//   for slices of 4096 elements, 0.8 ms for 2^28 gradients.

#include "fp8_exchange.cuh"

using namespace pkb;

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    reduce_codes(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out,
                 long long part_elems, const float* __restrict__ largest, int num_largest,
                 const __nv_bfloat16* __restrict__ history, __nv_bfloat16* __restrict__ new_history,
                 int history_elems, int rank, int world_size) {
  using Word = typename PackCodes<T>::Word;
  BlockBarrier barrier(peers, rank, world_size, "fp8_reduce_scatter_grads");
  const float own_scale = delayed_scale(largest, num_largest, history, new_history, history_elems);
  const long long num_packs = ceil_div(part_elems, kPackElems<T>);
  const bool aligned = part_elems % kPackElems<T> == 0;
  const CodeSlots<T> slots{peers, num_packs, call_half(barrier, 1), world_size};
  const auto encode = [&](int slice, long long i) {
    return fp8_codes<T>(load_maybe(aligned, in + slice * part_elems, i, part_elems), own_scale).word;
  };
  if (threadIdx.x < world_size) *slots.scale(threadIdx.x, rank) = own_scale;
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          // Every rank begins with another owner, so that no GPU is written to by all at once.
          const int owner = (rank + step) % world_size;
          Word* const theirs = slots.codes(owner, rank);
          copy_items(
              range, [&](long long i) { return encode(owner, i); }, [&](long long i, Word word) { theirs[i] = word; });
        }
      },
      [&](const Range& range) {
        for (long long i = range.first; i < range.end; i += range.stride) {
          float total[kPackElems<T>] = {};
          for (int s = 0; s < world_size; ++s) {
            float x[kPackElems<T>];
            fp8_floats<T>(s == rank ? encode(rank, i) : slots.codes(rank, s)[i],
                       s == rank ? own_scale : *slots.scale(rank, s), x);
#pragma unroll
            for (int k = 0; k < kPackElems<T>; ++k) total[k] += x[k];
          }
#pragma unroll
          for (int k = 0; k < kPackElems<T>; ++k) total[k] /= static_cast<float>(world_size);
          store_pack(out, i, part_elems, PackOf<T>::of_floats(total));
        }
      });
  barrier.end_call();
}
