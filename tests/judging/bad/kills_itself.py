"""Kills rank 1 while rank 0 waits for it."""

import os
import signal

import torch.distributed as dist


def solution(tensor):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor.clone())
    return tensor
