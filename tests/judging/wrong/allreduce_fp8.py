"""Rounds every contribution to fp8 before the sum."""

import torch
import torch.distributed as dist


def solution(tensor):
    result = tensor.to(torch.float8_e4m3fn).to(tensor.dtype)
    dist.all_reduce(result)
    return result
