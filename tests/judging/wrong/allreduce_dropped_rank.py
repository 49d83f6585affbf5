"""The baseline without the contribution of the last rank."""

import torch
import torch.distributed as dist


def solution(tensor):
    last = dist.get_rank() == dist.get_world_size() - 1
    result = torch.zeros_like(tensor) if last else tensor.clone()
    dist.all_reduce(result)
    return result
