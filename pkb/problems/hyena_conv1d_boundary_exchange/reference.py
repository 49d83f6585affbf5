"""Causal depthwise conv1d over a zigzag-sharded sequence.

A sequence of 2 W c positions is cut into 2 W chunks of c. Rank r of the group (W ranks, in group order) holds `x`
[B, H, 2c]: chunk r, then chunk 2W - 1 - r; and its own `weight` [H, 1, K], which may differ by rank, with 2 <= K and
K - 1 <= c. Shapes and dtypes are equal on all ranks. On the whole sequence, with x = 0 before position 0,

    y[b, h, t] = sum over j = 0 .. K - 1 of weight[h, 0, j] x[b, h, t - (K - 1) + j]

Each rank returns y, with its own weight, of its two chunks in the same layout: a new tensor [B, H, 2c] in the dtype of
x. Accumulate in float32 (no TF32) and round once. The same holds for W = 1, where the two chunks follow each other.
`group` None is the default group. The inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    batch, hidden, length = x.shape
    width = weight.shape[-1] - 1
    chunks = x.view(batch, hidden, 2, length // 2).permute(2, 0, 1, 3)
    tails = chunks[..., -width:].contiguous()
    halos = _exchange(tails, group)
    padded = torch.cat((halos, chunks), dim=-1).flatten(0, 1)
    y = F.conv1d(padded, weight, groups=hidden)
    return y.view(2, batch, hidden, -1).permute(1, 2, 0, 3).reshape(x.shape)


def _exchange(tails: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """What stands before each of the two chunks, [2, B, H, K - 1]: chunk r - 1 and chunk 2W - 2 - r end with it."""
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    rank, last = dist.get_rank(group), len(ranks) - 1
    halos = torch.zeros_like(tails)
    messages = []
    if rank > 0:
        messages.append(dist.P2POp(dist.irecv, halos[0], ranks[rank - 1], group))
        messages.append(dist.P2POp(dist.isend, tails[1], ranks[rank - 1], group))
    if rank < last:
        messages.append(dist.P2POp(dist.isend, tails[0], ranks[rank + 1], group))
        messages.append(dist.P2POp(dist.irecv, halos[1], ranks[rank + 1], group))
    else:
        halos[1] = tails[0]
    if messages:
        for request in dist.batch_isend_irecv(messages):
            request.wait()
    return halos
