"""Gradient mean that moves FP8 codes: one kernel finds the maximum, one encodes, sends and adds."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

C_TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"{kernel}<{c_type}>" for kernel in ("find_largest", "reduce_codes") for c_type in C_TYPES.values()],
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(flat_grads: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    world_size, num_elems, dtype = dist.get_world_size(), flat_grads.numel(), flat_grads.dtype
    if dtype not in C_TYPES or amax_history.dtype != torch.bfloat16:
        raise ValueError(
            f"fp8_reduce_scatter_grads: dtypes are {dtype} and {amax_history.dtype}, must be one of"
            f" {sorted(map(str, C_TYPES))} and torch.bfloat16"
        )
    out = flat_grads.new_empty(num_elems // world_size)
    new_history = torch.empty_like(amax_history)
    pack_elems = pkb.cuda.PACK_BYTES // dtype.itemsize
    part_packs = -(-out.numel() // pack_elems)
    scale_bytes = 4 * pkb.cuda.MAX_BLOCKS
    num_bytes = 2 * world_size * (scale_bytes + part_packs * pack_elems)
    space = WORKSPACES.get((num_elems, dtype), num_bytes, out.device)
    source = pkb.cuda.aligned(flat_grads)
    # A grid of its own: its blocks wait for nobody, and every rank reads as many maxima as it has written.
    num_largest = 4 * pkb.cuda.grid_blocks(num_elems // pack_elems, out.device)
    largest = torch.empty(num_largest, dtype=torch.float32, device=out.device)
    MODULE.kernel(f"find_largest<{C_TYPES[dtype]}>").launch(source, num_elems, largest, grid=num_largest, block=THREADS)
    MODULE.kernel(f"reduce_codes<{C_TYPES[dtype]}>").launch(
        space.peers,
        source,
        out,
        out.numel(),
        largest,
        np.int32(num_largest),
        amax_history.contiguous(),
        new_history,
        np.int32(amax_history.numel()),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(part_packs, out.device),
        block=THREADS,
    )
    return out, new_history
