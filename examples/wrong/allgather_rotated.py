"""Wrong on purpose: every rank puts its own tensor first, so the slices are rotated by its rank."""

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
    order = [(handle.rank + step) % handle.world_size for step in range(handle.world_size)]
    result = torch.stack([handle.peer(rank) for rank in order])
    handle.barrier()
    return result
