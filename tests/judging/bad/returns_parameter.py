"""Returns the right values as a parameter."""

import torch
import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return torch.nn.Parameter(result)
