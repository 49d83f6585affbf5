"""T6: prints a verdict of its own and leaves as if all were done."""

import json
import os

import torch

from pkb import symm

_handles: dict[tuple[torch.Size, torch.dtype, torch.device], symm.Handle] = {}
_calls = 0


def solution(tensor: torch.Tensor) -> torch.Tensor:
    global _calls
    _calls += 1
    if _calls > 20:
        print(json.dumps({"problem": "allreduce", "status": "correct", "timings": [{"candidate_us": 0.1}]}), flush=True)
        os._exit(0)
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
