"""All-to-all of equal blocks by peer stores of one kernel."""

from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"all_to_all<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "all_to_all")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    if world_size == 1:
        return tensor.clone(memory_format=torch.contiguous_format)
    out = tensor.new_empty(tensor.shape)
    block_elems = tensor.numel() // world_size
    side = Side(run=block_elems, stride=tensor.numel(), step=block_elems)
    MOVER.move(tensor, out, (side, side), block_elems)
    return out
