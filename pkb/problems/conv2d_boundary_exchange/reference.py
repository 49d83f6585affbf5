"""2-D convolution on an image split by rows, halo rows from neighbors.

Each rank r of the group (W ranks, in group order) holds `x` [B, C, h_r, Wd], its rows of an image; h_r may differ by
rank and is at least `padding`. It has its own `weight` [O, C, kh, kw] and `bias` [O] or None; these may differ by rank
in their values, while all other sizes, dtypes, `stride` and padding are equal on all ranks. Let the slab of rank r be

- the last `padding` rows of x of rank r - 1, or as many rows of zeros for r = 0,
- x,
- the first `padding` rows of x of rank r + 1, or as many rows of zeros for r = W - 1.

Rank r returns the convolution (cross-correlation) of its slab with its weight, the same stride in both directions, zero
padding of `padding` columns on both sides in width and none in height, plus its bias: a new contiguous tensor
[B, O, h', w'] in the dtype of x with h' = (h_r + 2 padding - kh) // stride + 1. So with padding 0 or W = 1 it is a
plain convolution of x. Accumulate in float32; TF32 products are fine. `group` None is the default group. The inputs
stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int = 1,
    padding: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    if padding == 0 or dist.get_world_size(group) == 1:
        return F.conv2d(x, weight, bias, stride, padding)
    above, below = _halos(x, padding, group)
    return F.conv2d(torch.cat((above, x, below), dim=2), weight, bias, stride, (0, padding))


def _halos(x: torch.Tensor, padding: int, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, torch.Tensor]:
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    rank = dist.get_rank(group)
    first, last = x[:, :, :padding].contiguous(), x[:, :, -padding:].contiguous()
    above, below = torch.zeros_like(last), torch.zeros_like(first)
    messages = []
    if rank > 0:
        messages.append(dist.P2POp(dist.irecv, above, ranks[rank - 1], group))
        messages.append(dist.P2POp(dist.isend, first, ranks[rank - 1], group))
    if rank < len(ranks) - 1:
        messages.append(dist.P2POp(dist.isend, last, ranks[rank + 1], group))
        messages.append(dist.P2POp(dist.irecv, below, ranks[rank + 1], group))
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    return above, below
