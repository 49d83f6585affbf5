"""Sum of one tensor over all ranks, on one rank.

Each rank holds `tensor` of shape [*S] (any shape, also [1]), equal shapes and dtypes on all ranks. `dst` is a
rank, the same number on all ranks, and may change from call to call. Rank dst returns a new tensor of the
same shape and dtype: the elementwise sum over all ranks. The order of additions is free; accumulate in
float32 and round once, or round after each addition. Every other rank returns a new tensor of the same shape
and dtype whose values are unspecified (by custom a copy of its own input). The inputs of all ranks stay as
they were.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    result = tensor.clone()
    dist.reduce(result, dst=dst, op=dist.ReduceOp.SUM)
    return result
