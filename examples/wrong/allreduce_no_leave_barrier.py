"""Wrong on purpose: nothing keeps a fast rank from overwriting its buffer while a slow peer still reads it."""

import torch

from pkb import symm

_BUFFERS = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = (tensor.shape, tensor.dtype, tensor.device)
    if key not in _BUFFERS:
        _BUFFERS[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device))
    handle = _BUFFERS[key]
    handle.tensor.copy_(tensor)
    handle.barrier()
    total = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
    for rank in range(handle.world_size):
        total += handle.peer(rank)
    return total.to(tensor.dtype)
