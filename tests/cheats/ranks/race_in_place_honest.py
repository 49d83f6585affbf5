"""The sum goes into the buffer that held the input, after all peers have read it."""

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
    handle.tensor.copy_(total)
    return handle.tensor.clone()
