"""Block transpose between ranks.

With W ranks, each rank holds `tensor` of shape [W, *S], or [k W, *S] for any k (S may be empty), equal shapes
and dtypes on all ranks. Dim 0 falls into W blocks of k consecutive rows. Rank r returns a new tensor of the
same shape and dtype: block s of its result has the bits of block r of rank s's tensor, its own block
included. The element count of a block may be odd, so blocks may begin at addresses that are no multiple of 16
bytes. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(tensor)
    dist.all_to_all_single(result, tensor)
    return result
