"""Takes any arguments, which is fine."""

import torch.distributed as dist


def solution(*args, **kwargs):
    result = args[0].clone()
    dist.all_reduce(result)
    return result
