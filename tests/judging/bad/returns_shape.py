"""Returns the right values in another shape."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.unsqueeze(0)
