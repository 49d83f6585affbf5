"""Row lookup in an embedding table sharded by rows.

With W ranks, each rank holds `local_shard` [R, D], rows r R to (r+1) R - 1 of a table of W R rows, where r is its rank;
R, D and the dtype are equal on all ranks. Row j is thus on rank j // R, at j mod R. `indices` [Q] int64 are the rows
that this rank asks for: 0 <= index < W R, in any order, repeated or not, mostly at one owner or not. Q may differ by
rank and may be 0, also while others ask this rank for rows. Each rank returns a new tensor [Q, D] in the dtype of the
table: row i is row indices[i] of the table, in the order of its own indices. A pure move: every bit as it is in the
table. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(indices: torch.Tensor, local_shard: torch.Tensor) -> torch.Tensor:
    num_rows, width = local_shard.shape
    owner = indices // num_rows
    order = torch.argsort(owner, stable=True)
    asked = torch.bincount(owner, minlength=dist.get_world_size())
    served = torch.empty_like(asked)
    dist.all_to_all_single(served, asked)
    num_asked, num_served = torch.stack((asked, served)).tolist()

    wanted = indices.new_empty(sum(num_served))
    dist.all_to_all_single(wanted, indices[order], num_served, num_asked)
    rows = local_shard[wanted - dist.get_rank() * num_rows]
    by_owner = local_shard.new_empty((indices.shape[0], width))
    dist.all_to_all_single(by_owner, rows, num_asked, num_served)
    result = torch.empty_like(by_owner)
    result[order] = by_owner
    return result
