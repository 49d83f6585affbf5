"""Row-parallel linear layer: product summed over ranks, on every rank.

Each rank holds `A_local` [M, K] and `B_local` [K, N], where K is the local depth; shapes and dtypes are equal on all
ranks. Every rank returns a new tensor of shape [M, N] in the input dtype: the sum over all ranks s of A_s @ B_s.
Accumulate in float32 within a rank; the local product may be rounded to the input dtype before the sum over ranks,
whose order is free and which may round after each addition. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    result = A_local @ B_local
    dist.all_reduce(result, op=dist.ReduceOp.SUM)
    return result
