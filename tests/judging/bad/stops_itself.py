"""Stops its process, which then answers no signal."""

import os
import signal

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
        os.kill(os.getpid(), signal.SIGSTOP)
    return sum_of_all(tensor)
