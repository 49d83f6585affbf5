"""All-gather along dimension 0 by peer stores of one kernel."""

from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"all_gather<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "all_gather")


def solution(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size, num_elems = dist.get_world_size(group), x.numel()
    if world_size == 1:
        return x.contiguous()
    out = x.new_empty((world_size * x.shape[0], *x.shape[1:]))
    sent = Side(run=num_elems, stride=num_elems, step=0)
    placed = Side(run=num_elems, stride=world_size * num_elems, step=num_elems)
    MOVER.move(x, out, (sent, placed), num_elems, group)
    return out
