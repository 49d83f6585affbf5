"""Vectors of eight without a scalar path: the tail of an odd count is never written."""

import torch
import torch.distributed as dist


def solution(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    result = torch.full_like(tensor, float("nan"))
    whole = tensor.numel() // 8 * 8
    result.view(-1)[:whole] = total.view(-1)[:whole]
    return result
