"""Honest: takes two milliseconds of work more than it needs."""

import time

import torch

from pkb import symm

_handles: dict[tuple[torch.Size, torch.dtype, torch.device], symm.Handle] = {}
_WORK_S = 0.002


def solution(tensor: torch.Tensor) -> torch.Tensor:
    time.sleep(_WORK_S)
    return sum_over_ranks(tensor)


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    key = (tensor.shape, tensor.dtype, tensor.device)
    if key not in _handles:
        _handles[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device))
    handle = _handles[key]
    handle.tensor.copy_(tensor)
    handle.barrier()
    total = torch.stack([handle.peer(rank) for rank in range(handle.world_size)]).float().sum(0)
    handle.barrier()
    return total.to(tensor.dtype)
