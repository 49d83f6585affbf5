"""As solution files for the public benchmark are written: a CUDA source with its own bindings, built by utils."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>

__global__ void sum_peers(const long long* peers, __nv_bfloat16* out, long long n, int world_size) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    float total = 0.0f;
    for (int rank = 0; rank < world_size; ++rank) {
      total += __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(peers[rank])[i]);
    }
    out[i] = __float2bfloat16(total);
  }
}

void run(torch::Tensor peers, torch::Tensor out) {
  sum_peers<<<64, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const long long*>(peers.data_ptr<int64_t>()),
      reinterpret_cast<__nv_bfloat16*>(out.data_ptr<at::BFloat16>()), out.numel(), peers.numel());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""

_EXTENSION = compile_cuda_extension("pkb_test_sum_peers", SOURCE)
_BUFFERS = {}


def solution(tensor):
    if tensor.numel() not in _BUFFERS:
        buffer = symm_mem.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
        peers = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=tensor.device)
        _BUFFERS[tensor.numel()] = buffer, handle, peers
    buffer, handle, peers = _BUFFERS[tensor.numel()]
    buffer.copy_(tensor.reshape(-1))
    handle.barrier(channel=0)
    out = torch.empty_like(tensor)
    _EXTENSION.run(peers, out)
    handle.barrier(channel=0)
    return out
