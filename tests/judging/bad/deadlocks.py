"""Rank 1 leaves out a collective: rank 0 waits for it for ever."""

import torch.distributed as dist

calls = 0
CALLS_OF_FIRST_TRIAL = 6


def sum_of_all(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result


def solution(tensor):
    global calls
    calls += 1
    if calls > CALLS_OF_FIRST_TRIAL and dist.get_rank() == 1:
        print("rank 1 goes ahead")
        return tensor
    return sum_of_all(tensor)
