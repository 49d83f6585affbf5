"""One rank's tensor on every rank.

Each rank holds `tensor` of shape [*S] (any shape, also [1]), equal shapes and dtypes on all ranks. `src` is a
rank, the same number on all ranks, and may change from call to call. Every rank, src included, returns a new
tensor with shape, dtype and bits of rank src's `tensor`. The other ranks' tensors give shape and dtype only:
their values do not matter. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    result = tensor.clone() if dist.get_rank() == src else torch.empty_like(tensor)
    dist.broadcast(result, src=src)
    return result
