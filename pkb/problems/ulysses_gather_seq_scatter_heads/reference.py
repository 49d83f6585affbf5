"""Ulysses: whole sequence, my heads.

Each rank of the group (W ranks, in group order) holds contiguous `x` of two or more dimensions: its part of the
sequence along `seq_dim`, all heads along `head_dim` (different dimensions, both >= 0, in either order). Shape and
dtype are equal on all ranks, and the size of head_dim is a multiple of W: along it x_s falls into W equal
consecutive parts. Let y be the concatenation along seq_dim over s = 0, ..., W-1 of part r of x_s. Rank r returns y,
cut at the end of the joined sequence to its first `unpadded_dim_size` positions if unpadded_dim_size is not 0 and
no multiple of W (it is less than the length of y then). Otherwise nothing is cut, even where unpadded_dim_size is
less than the length. The same holds for W = 1, where nothing is ever cut. A pure move: every bit arrives as it was
sent. `group` None is the default group. The result is a new tensor and need not be contiguous. The input stays as
it was.
"""

import torch
import torch.distributed as dist


def solution(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    sent = torch.stack(x.chunk(world_size, dim=head_dim))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    joined = torch.cat(received.unbind(), dim=seq_dim)
    if unpadded_dim_size % world_size != 0:
        return joined.narrow(seq_dim, 0, unpadded_dim_size)
    return joined
