"""Cut one dimension over the ranks, join another.

Each rank of the group (W ranks, in group order) holds `x`, of one or more dimensions, with equal shape and dtype on
all ranks. `scatter_dim` and `gather_dim` name dimensions of x and may be negative, counted from the end; they may be
equal. The size of scatter_dim is a multiple of W: along it x_s falls into W equal consecutive parts. Rank r returns,
contiguous, the concatenation along gather_dim over s = 0, ..., W-1 of part r of x_s. A pure move: every bit arrives
as it was sent. `x` may be a strided view. `group` None is the default group. The result is new memory, except that
for W = 1 x itself may be returned where it is contiguous. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(
    x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return x.contiguous()
    sent = torch.stack(x.chunk(world_size, dim=scatter_dim))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=gather_dim)
