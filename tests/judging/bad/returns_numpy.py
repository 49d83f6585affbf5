"""Returns an array of numpy."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.float().numpy()
