"""Ulysses: my part of the sequence, all heads (with zero padding).

Each rank of the group (W ranks, in group order) holds contiguous `x` of two or more dimensions: the whole sequence of
S positions along `seq_dim`, its part of the heads along `head_dim` (different dimensions, both >= 0, in either
order). Shape and dtype are equal on all ranks; S >= 1 need not be a multiple of W. With c = ceil(S / W), x_s is
padded with zeros at the end of seq_dim to c W positions. Rank r returns a new tensor: the concatenation along
head_dim over s = 0, ..., W-1 of positions r c to (r+1) c - 1 of the padded x_s. Ranks wholly beyond S return zeros.
A pure move apart from the padding: every bit arrives as it was sent. `group` None is the default group. The input
stays as it was.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, seq_dim: int, head_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    num_missing = -x.shape[seq_dim] % world_size
    if num_missing:
        shape = list(x.shape)
        shape[seq_dim] = num_missing
        x = torch.cat([x, x.new_zeros(shape)], dim=seq_dim)
    sent = torch.stack(x.chunk(world_size, dim=seq_dim))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=head_dim)
