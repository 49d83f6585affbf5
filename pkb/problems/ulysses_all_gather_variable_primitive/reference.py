"""All-gather of tensors whose length differs by rank.

Each rank of the group (W ranks, in group order) holds contiguous `x`. `gather_dim` names a dimension and may be
negative, counted from the end. Dtype, number of dimensions and all sizes are equal on all ranks, except for the size
along gather_dim, which may be 0 on some ranks, not on all. The other ranks' lengths are not known beforehand and
change from call to call. Every rank returns a contiguous tensor: x_0, x_1, ..., x_{W-1} joined along gather_dim. A
pure move: every bit arrives as it was sent. `group` None is the default group. The result is new memory, except that
for W = 1 x itself may be returned. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, gather_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    if world_size == 1:
        return x.contiguous()
    own_length = torch.full((1,), x.shape[gather_dim], dtype=torch.int64, device=x.device)
    all_lengths = own_length.new_empty(world_size)
    dist.all_gather_into_tensor(all_lengths, own_length, group=group)
    lengths = all_lengths.tolist()
    # Along dimension 0 every rank's part of the result is contiguous, so it can be received in place.
    front = x.movedim(gather_dim, 0)
    joined = x.new_empty((sum(lengths), *front.shape[1:]))
    parts = torch.split(joined, lengths)
    parts[rank].copy_(front)
    for source, part in enumerate(parts):
        if part.numel() > 0:
            dist.broadcast(part, group=group, group_src=source)
    return joined.movedim(0, gather_dim).contiguous()
