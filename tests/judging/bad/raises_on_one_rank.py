"""Raises on rank 1; rank 0 returns."""

import torch.distributed as dist


def solution(tensor):
    if dist.get_rank() == 1:
        raise ValueError(f"tile of {tensor.dim()} dimensions")
    return tensor
