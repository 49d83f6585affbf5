// Does: codes and scales of the own tensor by blocks: s = max|x| / 448, code = e4m3(x / s) (s = 0: x / 1); then those of all
//   ranks, joined.
//
// Moves: every rank stores n bytes of codes and 4 n / block_size bytes of scales into slots of every peer, W-1 times out
//   over the link; peers copy them into the results. The tensor is read once. SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, quantize and place: a BlockBarrier between
//   them publishes the stores, halves of the buffer alternate by call.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. by_lanes: a pack of 16 bytes a
//   thread, and as many neighboring threads as a block has packs find its maximum by shuffles, where that is a power of
//   two up to 32. by_thread: a whole block a thread, for all other block sizes.
//
// Assumes: float, bfloat16 or half; up to 8 ranks, the same shapes on all; tensors on 16-byte boundaries. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by the link above. Predicted for two H200, not measured: about 10 us for 2^17
//   elements, 0.4 ms for 16384 x 7168 elements at 330 GB/s.

#include "exchange.cuh"
#include "quantize.cuh"

using namespace pkb;

// Symmetric buffer: two halves of W slots of codes, `code_bytes` each, followed by two halves of W slots of scales.
struct Slots {
  const Peers& peers;
  long long code_bytes;
  long long num_scales;
  long long parity;
  int world_size;

  __device__ unsigned char* codes(int owner, int source) const {
    return buffer_of<unsigned char>(peers, owner) + (parity * world_size + source) * code_bytes;
  }
  __device__ float* scales(int owner, int source) const {
    float* const all = reinterpret_cast<float*>(buffer_of<unsigned char>(peers, owner) + 2 * world_size * code_bytes);
    return all + (parity * world_size + source) * num_scales;
  }
};

__device__ inline float divisor_of(float scale) { return scale == 0.0f ? 1.0f : scale; }

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    quantize_by_lanes(const __grid_constant__ Peers peers, const T* __restrict__ in, unsigned char* __restrict__ codes,
                      float* __restrict__ scales, long long num_elems, long long code_bytes, int block_size, int rank,
                      int world_size) {
  using Word = typename PackCodes<T>::Word;
  BlockBarrier barrier(peers, rank, world_size, "blocked_fp8_quantize by lanes");
  const int lanes = block_size / kPackElems<T>;
  const long long num_packs = num_elems / kPackElems<T>;
  const long long num_scales = num_elems / block_size;
  const Slots slots{peers, code_bytes, num_scales, call_half(barrier, 1), world_size};
  const auto place = [&](unsigned char* its_codes, float* its_scales, long long i, Word word, float scale) {
    reinterpret_cast<Word*>(its_codes)[i] = word;
    if (i % lanes == 0) its_scales[i / lanes] = scale;
  };
  pipeline(
      barrier, num_packs,
      [&](const Range& range) {
        copy_items(
            range, [&](long long i) { return load_pack(in, i, num_elems); },
            [&](long long i, uint4 v) {
              float x[kPackElems<T>];
              PackOf<T>::to_floats(v, x);
              // Blocks are whole, so all lanes of a group are here or none.
              const float scale = group_max(largest_of(x), lanes) / kLargestFp8;
              const Word word = fp8_codes<T>(v, divisor_of(scale)).word;
              place(codes + rank * num_elems, scales + rank * num_scales, i, word, scale);
              for (int step = 1; step < world_size; ++step) {
                const int owner = (rank + step) % world_size;
                place(slots.codes(owner, rank), slots.scales(owner, rank), i, word, scale);
              }
            });
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const Word* const arrived = reinterpret_cast<const Word*>(slots.codes(rank, source));
          const float* const its_scales = slots.scales(rank, source);
          copy_items(
              range, [&](long long i) { return arrived[i]; },
              [&](long long i, Word word) {
                const float scale = i % lanes == 0 ? its_scales[i / lanes] : 0.0f;
                place(codes + source * num_elems, scales + source * num_scales, i, word, scale);
              });
        }
      });
  barrier.end_call();
}

template <class T>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    quantize_by_thread(const __grid_constant__ Peers peers, const T* __restrict__ in, unsigned char* __restrict__ codes,
                       float* __restrict__ scales, long long num_elems, long long code_bytes, int block_size, int rank,
                       int world_size) {
  BlockBarrier barrier(peers, rank, world_size, "blocked_fp8_quantize by thread");
  const long long num_scales = num_elems / block_size;
  const Slots slots{peers, code_bytes, num_scales, call_half(barrier, 1), world_size};
  pipeline(
      barrier, num_scales,
      [&](const Range& range) {
        for (long long i = range.first; i < range.end; i += range.stride) {
          const long long offset = i * block_size;
          float largest = 0.0f;
          for (int k = 0; k < block_size; ++k) largest = fmaxf(largest, fabsf(static_cast<float>(in[offset + k])));
          const float scale = largest / kLargestFp8;
          for (int step = 0; step < world_size; ++step) {
            const int owner = (rank + step) % world_size;
            unsigned char* const its_codes = step == 0 ? codes + rank * num_elems : slots.codes(owner, rank);
            for (int k = 0; k < block_size; ++k) {
              its_codes[offset + k] = fp8_code(static_cast<float>(in[offset + k]) / divisor_of(scale));
            }
            (step == 0 ? scales + rank * num_scales : slots.scales(owner, rank))[i] = scale;
          }
        }
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          for (long long i = range.first; i < range.end; i += range.stride) {
            const long long offset = i * block_size;
            for (int k = 0; k < block_size; ++k) {
              codes[source * num_elems + offset + k] = slots.codes(rank, source)[offset + k];
            }
            scales[source * num_scales + i] = slots.scales(rank, source)[i];
          }
        }
      });
  barrier.end_call();
}
