"""Averages instead of summing."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result / dist.get_world_size()
