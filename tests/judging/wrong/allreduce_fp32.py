"""Returns the sum in another dtype."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.double()
    dist.all_reduce(result)
    return result
