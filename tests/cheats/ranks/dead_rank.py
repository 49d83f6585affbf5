"""The last rank ends its process in the middle of a call, while its peers wait for it."""

import os

import torch.distributed as dist


def solution(tensor):
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(0)
    result = tensor.clone()
    dist.all_reduce(result)
    return result
