"""Ulysses, whole sequence and own heads, by peer stores of one kernel."""

from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"gather_seq<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "gather_seq")


def solution(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    shape = list(x.shape)
    shape[head_dim] //= world_size
    part_shape = tuple(shape)
    shape[seq_dim] *= world_size
    out = x.new_empty(shape)
    sides = (Side.cut(part_shape, head_dim, world_size), Side.cut(part_shape, seq_dim, world_size))
    MOVER.move(x, out, sides, prod(part_shape), group)
    return out.narrow(seq_dim, 0, unpadded_dim_size) if unpadded_dim_size % world_size else out
