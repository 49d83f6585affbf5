"""All ranks' tensors stacked, on every rank.

Each rank holds `tensor` of shape [*S] (any shape, also [1]), equal shapes and dtypes on all ranks. With W
ranks, every rank returns a new tensor of shape [W, *S] and the same dtype, whose entry s along dim 0 is rank
s's tensor. A pure move: every bit arrives as it was sent. The element count may be odd, so entry s may begin
at an address that is no multiple of 16 bytes. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.new_empty((dist.get_world_size(), *tensor.shape))
    dist.all_gather_into_tensor(result.view(-1), tensor.view(-1))
    return result
