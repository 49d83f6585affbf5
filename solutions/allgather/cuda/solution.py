"""All-gather by peer stores of one kernel."""

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


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size, num_elems = dist.get_world_size(), tensor.numel()
    if world_size == 1:
        return tensor.unsqueeze(0).clone(memory_format=torch.contiguous_format)
    out = tensor.new_empty((world_size, *tensor.shape))
    sent = Side(run=num_elems, stride=num_elems, step=0)
    placed = Side(run=num_elems, stride=world_size * num_elems, step=num_elems)
    MOVER.move(tensor, out, (sent, placed), num_elems)
    return out
