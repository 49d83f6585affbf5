// Does: a = max|x|; scale = max(history and a, 1e-12) / 448; rec = e4m3(x / scale) scale of the own shard; then rec of all
//   ranks, joined.
//
// Moves: every rank stores p bytes of codes and its scale into slots of every peer, (W-1) p bytes out over the link, half of
//   what bfloat16 would take; peers multiply out. The shard is read twice from HBM. SM stores.
//
// Protocol: find_largest writes the maximum of each block of the own tensor, the second kernel, next in the stream, makes
//   the scale of them. Then that of `pipeline` (exchange.cuh) with two stages, encode and decode: a BlockBarrier between
//   them publishes the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. A pack of 16 bytes of input a
//   thread, four loads in flight, chunks of 16 packs a thread.
//
// Assumes: float, bfloat16 or half, a history of bfloat16; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries.
//   Any p: where shards do not begin on 16-byte boundaries in the result they are written element by element. Checked in fp8_exchange.py.
//
// Speed: bound by launches and barrier below 1 MiB, by link and HBM above. Predicted for two H200, not measured: about 15 us
//   for 4096 elements, 0.7 ms for 2^27 elements a rank.

#include "fp8_exchange.cuh"

using namespace pkb;

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    gather_codes(const __grid_constant__ Peers peers, const T* __restrict__ in, T* __restrict__ out,
                 long long part_elems, const float* __restrict__ largest, int num_largest,
                 const __nv_bfloat16* __restrict__ history, __nv_bfloat16* __restrict__ new_history,
                 int history_elems, int rank, int world_size) {
  using Word = typename PackCodes<T>::Word;
  BlockBarrier barrier(peers, rank, world_size, "fp8_allgather_params");
  const float own_scale = delayed_scale(largest, num_largest, history, new_history, history_elems);
  const long long num_packs = ceil_div(part_elems, kPackElems<T>);
  const bool aligned = part_elems % kPackElems<T> == 0;
  const CodeSlots<T> slots{peers, num_packs, call_half(barrier, 1), world_size};
  const auto place = [&](int source, long long i, Word word, float scale) {
    float x[kPackElems<T>];
    fp8_floats<T>(word, scale, x);
    store_maybe(aligned, out + source * part_elems, i, part_elems, PackOf<T>::of_floats(x));
  };
  if (threadIdx.x < world_size) *slots.scale(threadIdx.x, rank) = own_scale;
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        copy_items(
            range, [&](long long i) { return load_pack(in, i, part_elems); },
            [&](long long i, uint4 v) {
              const Word word = fp8_codes<T>(v, own_scale).word;
              place(rank, i, word, own_scale);
              for (int step = 1; step < world_size; ++step) slots.codes((rank + step) % world_size, rank)[i] = word;
            });
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const float scale = *slots.scale(rank, source);
          const Word* const arrived = slots.codes(rank, source);
          copy_items(
              range, [&](long long i) { return arrived[i]; },
              [&](long long i, Word word) { place(source, i, word, scale); });
        }
      });
  barrier.end_call();
}
