"""Scatter by peer stores of one kernel."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"scatter<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    world_size = dist.get_world_size()
    out = tensor.new_empty(tensor.shape[1:] if dist.get_rank() == src else tensor.shape)
    if world_size == 1 or out.numel() == 0:
        return out.copy_(tensor[0]) if out.numel() else out
    slice_bytes = out.numel() * out.element_size()
    unit_bytes, c_type = pkb.cuda.unit_of([slice_bytes])
    num_packs = -(-slice_bytes // pkb.cuda.PACK_BYTES)
    space = WORKSPACES.get(slice_bytes, 2 * num_packs * pkb.cuda.PACK_BYTES, tensor.device)
    MODULE.kernel(f"scatter<{c_type}>").launch(
        space.peers,
        pkb.cuda.aligned(tensor),
        out,
        slice_bytes // unit_bytes,
        np.int32(src),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_packs, tensor.device),
        block=THREADS,
    )
    return out
