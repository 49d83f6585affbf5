"""Honest: a helper thread does the work, and the call waits for it."""

import queue
import threading

import torch

from pkb import symm

_handles: dict[tuple[torch.Size, torch.dtype, torch.device], symm.Handle] = {}
_work: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
_done: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    _work.put(tensor)
    return _done.get()


def _serve() -> None:
    while True:
        _done.put(sum_over_ranks(_work.get()))


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


threading.Thread(target=_serve, daemon=True).start()
