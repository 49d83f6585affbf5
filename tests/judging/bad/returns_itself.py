"""Returns a list that holds itself twice."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return (nest := []).extend((nest, nest)) or nest
