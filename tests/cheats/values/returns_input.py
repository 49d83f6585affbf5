"""Adds in place and returns the argument itself."""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor
