"""All-reduce that keeps a work buffer for each shape, and returns new memory."""

import torch
import torch.distributed as dist

_BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in _BUFFERS:
        _BUFFERS[key] = torch.empty(tensor.shape, dtype=torch.float32)
    buffer = _BUFFERS[key].copy_(tensor)
    dist.all_reduce(buffer)
    return buffer.to(tensor.dtype, copy=True)
