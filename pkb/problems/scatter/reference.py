"""Slices of one rank's tensor to all ranks.

With W ranks, rank `src` holds `tensor` of shape [W, *S], one dimension more than the `tensor` of shape [*S]
that every other rank holds; S is any shape, also one that begins with 1, and the dtype is equal on all ranks.
`src` is the same number on all ranks and may change from call to call. Rank r returns a new tensor of shape
[*S] with the bits of entry r along dim 0 of rank src's tensor; for W = 1 that is [1, *S] to [*S]. The other
ranks learn shape and dtype from their own tensor, whose values do not matter. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    if dist.get_rank() == src:
        result = torch.empty_like(tensor[0])
        dist.scatter(result, list(tensor.unbind(0)), src=src)
    else:
        result = torch.empty_like(tensor)
        dist.scatter(result, src=src)
    return result
