"""LayerNorm's scale and shift gradients in one kernel: columns are added over rows, then over ranks."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"add_gradients<{c_type}>" for c_type in C_TYPES.values()]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(X_hat: torch.Tensor, dY: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, width = X_hat.shape
    dtype = X_hat.dtype
    if dtype not in C_TYPES or dY.dtype != dtype or dY.shape != X_hat.shape:
        raise ValueError(
            f"layernorm_backward: X_hat is {dtype} {tuple(X_hat.shape)}, dY {dY.dtype} {tuple(dY.shape)}; must agree"
            f" and be one of {sorted(map(str, C_TYPES))}"
        )
    out = X_hat.new_empty((2, width))
    row_packs = -(-width * dtype.itemsize // pkb.cuda.PACK_BYTES)
    if row_packs > 0:
        row_floats = row_packs * (pkb.cuda.PACK_BYTES // dtype.itemsize)
        # The number of rows is a rank's own affair, so nothing that ranks share depends on it.
        num_bytes = 2 * dist.get_world_size() * 2 * row_floats * 4
        space = WORKSPACES.get((width, dtype), num_bytes, out.device)
        # Whole lines of 128 bytes where there are enough columns for all SMs.
        tile_packs = next(packs for packs in (8, 4, 2, 1) if packs == 1 or row_packs >= packs * pkb.cuda.MAX_BLOCKS)
        MODULE.kernel(f"add_gradients<{C_TYPES[dtype]}>").launch(
            space.peers,
            pkb.cuda.aligned(X_hat),
            pkb.cuda.aligned(dY),
            out,
            num_rows,
            width,
            np.int32(tile_packs),
            space.rank,
            space.world_size,
            grid=pkb.cuda.grid_blocks(row_packs, out.device, tile_packs),
            block=THREADS,
        )
    d_gamma, d_beta = out.unbind()
    return d_gamma, d_beta
