"""Sum of one tensor over all ranks, on every rank.

Each rank holds `tensor` of shape [*S] (any shape, also [1]), equal shapes and dtypes on all ranks. Every rank
returns a new tensor of the same shape and dtype: the elementwise sum over all ranks. The order of additions
is free; accumulate in float32 and round once, or round after each addition. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    dist.all_reduce(result, op=dist.ReduceOp.SUM)
    return result
