"""Right, but leaves 50 sleeping children."""

import os
import time

import torch.distributed as dist

for _ in range(50):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result
