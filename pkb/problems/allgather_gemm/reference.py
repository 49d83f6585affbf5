"""Gather A along its columns, then multiply.

With W ranks, each rank holds `A_local` [M, K/W], its shard of the columns of A, and its own `B` [K, N];
shapes and dtypes are equal on all ranks, the values of B may differ by rank. A [M, K] is the concatenation of
all ranks' A_local along dim 1 in rank order. Every rank returns a new tensor A @ B of shape [M, N] with its
own B, in the input dtype. Accumulate in float32 and round once. K/W may be any number, and the strides of the
result are free. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    rows, depth = A_local.shape
    world_size = dist.get_world_size()
    shards = A_local.new_empty((world_size, rows, depth))
    dist.all_gather_into_tensor(shards.view(-1, depth), A_local)
    A = shards.transpose(0, 1).reshape(rows, world_size * depth)
    return A @ B
