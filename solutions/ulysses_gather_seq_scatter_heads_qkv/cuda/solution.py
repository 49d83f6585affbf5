"""Ulysses on a packed q|k|v projection by peer stores of one kernel."""

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
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int | None = None,
    restore_shape: bool = True,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    *positions, width = qkv_tensor.shape
    third = width // 3
    if world_size == 1:
        out = qkv_tensor.clone(memory_format=torch.contiguous_format).view(*positions, 3, third)
    else:
        part_shape = (*positions, 3, third // world_size)
        # A row is one third of one position.
        cut = Side(run=third // world_size, stride=third, step=third // world_size)
        joined_run = prod(part_shape[seq_dim:])
        joined = Side(run=joined_run, stride=world_size * joined_run, step=joined_run)
        out_shape = list(part_shape)
        out_shape[seq_dim] *= world_size
        out = qkv_tensor.new_empty(out_shape)
        MOVER.move(qkv_tensor, out, (cut, joined), prod(part_shape), group)
    if unpadded_dim_size and unpadded_dim_size % world_size:
        out = out.narrow(seq_dim, 0, unpadded_dim_size)
    return out.flatten(-2) if restore_shape else out
