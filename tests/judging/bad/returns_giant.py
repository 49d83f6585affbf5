"""Returns an expanded tensor of 2 TB that takes 2 bytes."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.flatten()[:1].expand(1 << 40)
