"""Ulysses, own part of the sequence and all heads, by peer stores of one kernel."""

from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"gather_heads<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "gather_heads")


def solution(x: torch.Tensor, seq_dim: int, head_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    shape = list(x.shape)
    shape[seq_dim] = -(-shape[seq_dim] // world_size)
    part_shape = tuple(shape)
    shape[head_dim] *= world_size
    out = x.new_empty(shape)
    cut_run, joined_run = prod(part_shape[seq_dim:]), prod(part_shape[head_dim:])
    # The last parts may reach beyond the sequence, whose rows are as long as x has them: the kernel sends zeros then.
    cut = Side(run=cut_run, stride=prod(x.shape[seq_dim:]), step=cut_run)
    joined = Side(run=joined_run, stride=world_size * joined_run, step=joined_run)
    MOVER.move(x, out, (cut, joined), prod(part_shape), group)
    return out
