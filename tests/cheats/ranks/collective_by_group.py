"""Calls the process group's own method in place of a function of torch.distributed."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.group.WORLD.allreduce([result]).wait()
    return result
