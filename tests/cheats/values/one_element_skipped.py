"""Leaves a single element out of the sum."""

import torch.distributed as dist


def solution(tensor):
    total = tensor.float().flatten()
    own = total[-1].item()
    dist.all_reduce(total)
    total[-1] = own
    return total.view_as(tensor).to(tensor.dtype)
