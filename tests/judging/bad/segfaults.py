"""Reads address 0 on rank 1."""

import ctypes

import torch.distributed as dist


def solution(tensor):
    print("rank", dist.get_rank(), "is alive")
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    dist.all_reduce(tensor.clone())
    return tensor
