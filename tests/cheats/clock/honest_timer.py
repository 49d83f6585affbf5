"""Honest: reads clocks to learn its own time."""

import time

import torch

from pkb import symm

_handles: dict[tuple[torch.Size, torch.dtype, torch.device], symm.Handle] = {}
spent_ns = 0


def solution(tensor: torch.Tensor) -> torch.Tensor:
    global spent_ns
    begin = time.monotonic_ns()
    result = sum_over_ranks(tensor)
    spent_ns += time.monotonic_ns() - begin
    return result


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
