"""Reduce-scatter of rows and their RMSNorm in one kernel: rows are normalized while later ones are on the link."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"reduce_normalize<{c_type}>" for c_type in C_TYPES.values()]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WARPS = THREADS // 32
WORKSPACES = pkb.cuda.Workspaces()


def solution(rs_input_1d: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    world_size, hidden, dtype = dist.get_world_size(), gamma.shape[0], rs_input_1d.dtype
    assert rs_input_1d.numel() % world_size == 0 and rs_input_1d.numel() // world_size % hidden == 0
    if dtype not in C_TYPES or gamma.dtype != dtype:
        raise ValueError(
            f"reducescatter_fused_rmsnorm: dtypes are {dtype} and {gamma.dtype}, must be the same one of"
            f" {sorted(map(str, C_TYPES))}"
        )
    num_rows = rs_input_1d.numel() // world_size // hidden
    out = rs_input_1d.new_empty((num_rows, hidden))
    if out.numel() == 0:
        return out
    row_packs = -(-hidden * dtype.itemsize // pkb.cuda.PACK_BYTES)
    num_bytes = 2 * world_size * num_rows * row_packs * pkb.cuda.PACK_BYTES
    space = WORKSPACES.get((num_rows, hidden, dtype), num_bytes, out.device)
    tile_rows = pkb.cuda.rows_per_tile(row_packs, WARPS)
    MODULE.kernel(f"reduce_normalize<{C_TYPES[dtype]}>").launch(
        space.peers,
        pkb.cuda.aligned(rs_input_1d),
        pkb.cuda.aligned(gamma),
        out,
        num_rows,
        hidden,
        float(eps),
        np.int32(tile_rows),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_rows, out.device, tile_rows),
        block=THREADS,
    )
    return out
