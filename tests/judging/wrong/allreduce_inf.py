"""One element overflows."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    result.view(-1)[0] = float("inf")
    return result
