"""Overwrites its input and returns twice the sum."""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor * 2
