"""Makes a group of its own and calls the library on it."""

import torch.distributed as dist

_GROUPS = []


def solution(tensor):
    if not _GROUPS:
        _GROUPS.append(dist.new_group())
    result = tensor.clone()
    dist.all_reduce(result, group=_GROUPS[0])
    return result
