"""Raises on rank 1 while the others wait for it in a collective."""

import torch.distributed as dist


def solution(tensor):
    if dist.get_rank() == 1:
        raise ValueError("no room for rank 1")
    dist.all_reduce(tensor.clone())
    return tensor
