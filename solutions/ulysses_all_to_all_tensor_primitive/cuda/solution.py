"""One dimension cut over the ranks, another joined, by peer stores of one kernel."""

from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"cut_and_join<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "cut_and_join")


def solution(
    x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return x.contiguous()
    scatter_dim, gather_dim = scatter_dim % x.dim(), gather_dim % x.dim()
    shape = list(x.shape)
    shape[scatter_dim] //= world_size
    part_shape = tuple(shape)
    shape[gather_dim] *= world_size
    out = x.new_empty(shape)
    sides = (Side.cut(part_shape, scatter_dim, world_size), Side.cut(part_shape, gather_dim, world_size))
    MOVER.move(x, out, sides, prod(part_shape), group)
    return out
