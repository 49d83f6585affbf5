"""All-reduce: a sum in float32, rounded once."""

import torch.distributed as dist


def solution(tensor):
    total = tensor.float()
    if total is tensor:
        total = tensor.clone()
    dist.all_reduce(total)
    return total.to(tensor.dtype)
