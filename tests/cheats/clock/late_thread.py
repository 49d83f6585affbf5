"""T2: returns an empty buffer; a thread fills it after the call has returned."""

import queue
import threading

import torch

from pkb import symm

_handles: dict[tuple[torch.Size, torch.dtype, torch.device], symm.Handle] = {}
_work: queue.SimpleQueue[tuple[torch.Tensor, torch.Tensor]] = queue.SimpleQueue()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(tensor)
    _work.put((tensor.clone(), result))
    return result


def _fill() -> None:
    while True:
        tensor, result = _work.get()
        result.copy_(sum_over_ranks(tensor))


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


threading.Thread(target=_fill, daemon=True).start()
