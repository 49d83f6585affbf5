"""All-gather along dimension 0.

Each rank of the group (W ranks, in group order) holds `x` [d0, ...], of one or more dimensions, with equal shape
and dtype on all ranks. Every rank returns a contiguous tensor [W d0, ...]: x_0, x_1, ..., x_{W-1} joined along
dimension 0. A pure move: every bit arrives as it was sent, signs of zero and infinities included. `x` may be a
strided view. Element counts may be odd, so rank s's part may begin at an address that is no multiple of 16 bytes.
`group` None is the default group. The result is new memory that later calls must not touch, except that for W = 1
x itself may be returned where it is contiguous. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    x = x.contiguous()
    if world_size == 1:
        return x
    result = x.new_empty((world_size * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(result, x, group=group)
    return result
