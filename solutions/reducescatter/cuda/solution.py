"""Reduce-scatter by peer stores of one kernel."""

from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"reduce_scatter<{c_type}>" for c_type in C_TYPES.values()]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    out = tensor.new_empty((tensor.shape[0] // world_size, *tensor.shape[1:]))
    if world_size == 1 or out.numel() == 0:
        return out.copy_(tensor)
    if tensor.dtype not in C_TYPES:
        raise ValueError(f"reducescatter: dtype is {tensor.dtype}, must be one of {sorted(map(str, C_TYPES))}")
    num_packs = -(-out.numel() * out.element_size() // pkb.cuda.PACK_BYTES)
    num_bytes = 2 * world_size * num_packs * pkb.cuda.PACK_BYTES
    space = WORKSPACES.get((out.numel(), out.dtype), num_bytes, tensor.device)
    MODULE.kernel(f"reduce_scatter<{C_TYPES[tensor.dtype]}>").launch(
        space.peers,
        pkb.cuda.aligned(tensor),
        out,
        out.numel(),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_packs, tensor.device),
        block=THREADS,
    )
    return out
