// Does: place s of out = float(y) float(scale) for chunk r of rank s: y its elements, one scale a block of block_size.
//
// Moves: codes travel, not the floats made of them: every rank stores chunk d and its scales into a slot of rank d, which
//   multiplies; 1 byte an element for FP8 out over the link, where the product would take 4. SM stores.
//
// Protocol: that of `pipeline` (exchange.cuh) with two stages, send and multiply: a BlockBarrier between
//   them publishes the stores, halves of the buffer alternate by call. A scale is sent by every thread block that sends
//   elements of its block, the same bits each time, since thread blocks publish to their own peers only.
//   Signals count up and stay for the next call. Calls of one rank are in stream order, all ranks make them in the same
//   order.
//
// Splits: up to 128 blocks of 512 threads, at most one an SM, so that all are resident. kElems elements a thread, four loads
//   in flight, chunks of 16 a thread.
//
// Assumes: elements of float8_e4m3, bfloat16, half or float, scales of float or bfloat16; up to 8 ranks; tensors on 16-byte
//   boundaries; kElems, 4 or 1, divides block_size. Checked in solution.py.
//
// Speed: bound by the barrier below 1 MiB, by HBM above, which takes 4 bytes an element. Predicted for two H200, not
//   measured: about 10 us for 2^17 elements, 0.5 ms for 32768 x 7168 of FP8.

#include "exchange.cuh"
#include "quantize.cuh"

using namespace pkb;

__device__ inline float value_of(unsigned char code) { return fp8_value(code); }
__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(__half x) { return __half2float(x); }
__device__ inline float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T, int kElems>
struct alignas(sizeof(T) * kElems) Elems {
  T at[kElems];
};

// Symmetric buffer: two halves of W slots of elements, `slot_bytes` each, then two halves of W slots of float scales.
template <class T, class Scale, int kElems>
__global__ void __launch_bounds__(kExchangeThreads, 1)
    dequantize(const __grid_constant__ Peers peers, const T* __restrict__ y, const Scale* __restrict__ scales,
               float* __restrict__ out, long long chunk_elems, long long slot_bytes, int block_size, int rank,
               int world_size) {
  using Item = Elems<T, kElems>;
  BlockBarrier barrier(peers, rank, world_size, "blocked_fp8_dequantize");
  const long long num_scales = chunk_elems / block_size;
  const long long first_slot = call_half(barrier, world_size);
  const auto slot = [&](int owner, int source) {
    return reinterpret_cast<Item*>(buffer_of<char>(peers, owner) + (first_slot + source) * slot_bytes);
  };
  const auto scale_slot = [&](int owner, int source) {
    float* const all = reinterpret_cast<float*>(buffer_of<char>(peers, owner) + 2 * world_size * slot_bytes);
    return all + (first_slot + source) * num_scales;
  };
  const auto item_of = [&](int chunk, long long i) {
    return reinterpret_cast<const Item*>(y + chunk * chunk_elems)[i];
  };
  const auto multiply = [&](int source, long long i, const Item& item, float scale) {
    Elems<float, kElems> product;
#pragma unroll
    for (int k = 0; k < kElems; ++k) product.at[k] = value_of(item.at[k]) * scale;
    reinterpret_cast<Elems<float, kElems>*>(out + source * chunk_elems)[i] = product;
  };
  pipeline(
      barrier, chunk_elems / kElems,
      [&](const Range& range) {
        for (int step = 0; step < world_size; ++step) {
          const int owner = (rank + step) % world_size;
          const Scale* const its_scales = scales + owner * num_scales;
          copy_items(
              range, [&](long long i) { return item_of(owner, i); },
              [&](long long i, const Item& item) {
                const long long block = i * kElems / block_size;
                if (owner == rank) {
                  multiply(rank, i, item, value_of(its_scales[block]));
                  return;
                }
                slot(owner, rank)[i] = item;
                if (threadIdx.x == 0 || i * kElems % block_size == 0) {
                  scale_slot(owner, rank)[block] = value_of(its_scales[block]);
                }
              });
        }
      },
      [&](const Range& range) {
        for (int step = 1; step < world_size; ++step) {
          const int source = (rank + step) % world_size;
          const Item* const arrived = slot(rank, source);
          const float* const its_scales = scale_slot(rank, source);
          copy_items(
              range, [&](long long i) { return arrived[i]; },
              [&](long long i, const Item& item) { multiply(source, i, item, its_scales[i * kElems / block_size]); });
        }
      });
  barrier.end_call();
}
