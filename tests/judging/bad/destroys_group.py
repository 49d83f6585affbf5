"""Ends the process group of which it is a guest; the second call has none."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    dist.destroy_process_group()
    return result
