"""Returns the right values in a sparse tensor."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.to_sparse()
