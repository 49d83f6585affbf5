"""Gather A along its columns (moved as transposed shards), then multiply.

With W ranks, each rank holds `A_local` [M, K/W], its shard of the columns of A, and its own `B` [K, N]; shapes and
dtypes are equal on all ranks, the values of B may differ by rank. A [M, K] is the concatenation of all ranks' A_local
along dim 1 in rank order. Every rank returns a new tensor A @ B of shape [M, N] with its own B, in the input dtype.
Accumulate in float32 and round once. K/W may be any number, and the strides of the result are free: it may be the
transposed view of a new tensor [N, M]. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    shard = A_local.t().contiguous()
    depth, rows = shard.shape
    A_transposed = shard.new_empty((dist.get_world_size() * depth, rows))
    dist.all_gather_into_tensor(A_transposed, shard)
    return (B.t() @ A_transposed).t()
