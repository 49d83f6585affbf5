"""Right, but replaces sys.stdout, closes both streams and moves elsewhere."""

import io
import os
import sys

import torch.distributed as dist

sys.stdout = io.StringIO()
sys.stderr = None
os.close(1)
os.close(2)
os.chdir("/")


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result
