"""Sum over all ranks, each rank keeping one block.

With W ranks, each rank holds `tensor` of shape [W m, *S] (S may be empty), equal shapes and dtypes on all
ranks. Rank r returns a new tensor of shape [m, *S] and the same dtype: rows r m to (r+1) m - 1 along dim 0 of
the elementwise sum over all ranks. The order of additions is free; accumulate in float32 and round once, or
round after each addition. A block may begin at an address that is no multiple of 16 bytes. The input stays as
it was.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.new_empty((tensor.shape[0] // dist.get_world_size(), *tensor.shape[1:]))
    dist.reduce_scatter_tensor(result, tensor, op=dist.ReduceOp.SUM)
    return result
