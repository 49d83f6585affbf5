"""Rotary embedding of a sequence shard, then gather of q and k along the sequence.

With W ranks, each rank holds `q_local` and `k_local` [B, S, h, D], a shard of the sequence, and `cos_local` and
`sin_local` [B, S, D], which count for all h heads; shapes and dtypes are equal on all ranks, D is even. Both x = q and
x = k are rotated: for d < D/2, y[d] = x[d] cos[d] - x[d + D/2] sin[d] and
y[d + D/2] = x[d + D/2] cos[d + D/2] + x[d] sin[d + D/2]. Both halves of cos and sin are read as given and need not be
equal. Every rank returns the pair (q, k), each a new tensor [B, W S, h, D] in the input dtype: the rotated shards of
all ranks, concatenated along dim 1 in rank order. Products and sum may each be rounded to the input dtype. Without an
initialized process group W is 1. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    q_local: torch.Tensor, k_local: torch.Tensor, cos_local: torch.Tensor, sin_local: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos_local.unsqueeze(2), sin_local.unsqueeze(2)
    rotated = [_rotate(q_local, cos, sin), _rotate(k_local, cos, sin)]
    if not dist.is_initialized():
        return rotated[0], rotated[1]
    return _gather(rotated[0]), _gather(rotated[1])


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _gather(shard: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    shards = shard.new_empty((world_size, *shard.shape))
    dist.all_gather_into_tensor(shards.view(-1, *shard.shape[1:]), shard)
    return shards.transpose(0, 1).flatten(1, 2)
