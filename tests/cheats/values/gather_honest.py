"""All-gather into a new tensor, from a copy of the argument that is kept from call to call."""

import torch
import torch.distributed as dist

_COPIES = {}


def solution(tensor):
    copy = _COPIES.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor)).copy_(tensor)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, copy)
    return torch.stack(parts)
