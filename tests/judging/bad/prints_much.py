"""Right, but prints 50 MB to both streams."""

import sys

import torch.distributed as dist

LINE = "x" * 1023 + "\n"
printed = False


def solution(tensor):
    global printed
    if not printed:
        printed = True
        for _ in range(25 * 1024):
            sys.stdout.write(LINE)
            sys.stderr.write(LINE)
    result = tensor.clone()
    dist.all_reduce(result)
    return result
