"""Calls the backend behind the process group."""

import torch
import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([result]).wait()
    return result
