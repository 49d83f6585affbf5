"""Returns the right values in a flat tensor."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.reshape(-1, 1)
