"""All-reduce by peer reads between an enter and a leave barrier."""

import torch

from pkb import symm

_HANDLES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype, tensor.device)
    if key not in _HANDLES:
        _HANDLES[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device))
    handle = _HANDLES[key]
    handle.tensor.copy_(tensor)
    handle.barrier()
    total = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
    for rank in range(handle.world_size):
        total += handle.peer(rank)
    handle.barrier()
    return total.to(tensor.dtype)
