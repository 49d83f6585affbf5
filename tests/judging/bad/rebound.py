"""A first definition with other arguments is replaced by one that fits, which is fine."""

import functools

import torch.distributed as dist


def solution(tensor, op):
    result = tensor.clone()
    dist.all_reduce(result, op=op)
    return result


solution = functools.partial(solution, op=dist.ReduceOp.SUM)
