"""Gather on one rank by peer stores of one kernel."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"gather<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    world_size, is_root = dist.get_world_size(), dist.get_rank() == dst
    out = tensor.new_empty((world_size, *tensor.shape)) if is_root else tensor
    if world_size == 1 or tensor.numel() == 0:
        return out.copy_(tensor.unsqueeze(0)) if is_root else out
    num_bytes = tensor.numel() * tensor.element_size()
    unit_bytes, c_type = pkb.cuda.unit_of([num_bytes])
    num_packs = -(-num_bytes // pkb.cuda.PACK_BYTES)
    space = WORKSPACES.get(num_bytes, 2 * world_size * num_packs * pkb.cuda.PACK_BYTES, tensor.device)
    MODULE.kernel(f"gather<{c_type}>").launch(
        space.peers,
        pkb.cuda.aligned(tensor),
        out,
        num_bytes // unit_bytes,
        np.int32(dst),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_packs, tensor.device),
        block=THREADS,
    )
    return out
