"""Block-scaled FP8 quantization whose codes and scales leave for all peers as they are computed, in one kernel."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"quantize_{way}<{c_type}>" for way in ("by_lanes", "by_thread") for c_type in C_TYPES.values()],
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(local_tensor: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    *rows, width = local_tensor.shape
    dtype, num_elems = local_tensor.dtype, local_tensor.numel()
    assert width % block_size == 0, "the last dimension has to be a multiple of block_size"
    if dtype not in C_TYPES:
        raise ValueError(f"blocked_fp8_quantize: dtype is {dtype}, must be one of {sorted(map(str, C_TYPES))}")
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    whole = (world_size * rows[0], *rows[1:], width) if rows else (world_size * width,)
    codes = torch.empty(whole, dtype=torch.float8_e4m3fn, device=local_tensor.device)
    scales = torch.empty((*whole[:-1], whole[-1] // block_size), dtype=torch.float32, device=local_tensor.device)
    if num_elems == 0:
        return codes, scales
    lanes, rest = divmod(block_size * dtype.itemsize, pkb.cuda.PACK_BYTES)
    is_by_lanes = rest == 0 and lanes in (1, 2, 4, 8, 16, 32)
    code_bytes = -(-num_elems // pkb.cuda.PACK_BYTES) * pkb.cuda.PACK_BYTES
    num_scales = num_elems // block_size
    num_bytes = 2 * world_size * (code_bytes + 4 * num_scales)
    space = WORKSPACES.get((num_elems, dtype, block_size), num_bytes, local_tensor.device)
    items = num_scales * lanes if is_by_lanes else num_scales
    MODULE.kernel(f"quantize_{'by_lanes' if is_by_lanes else 'by_thread'}<{C_TYPES[dtype]}>").launch(
        space.peers,
        pkb.cuda.aligned(local_tensor),
        codes,
        scales,
        num_elems,
        code_bytes,
        np.int32(block_size),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(items, local_tensor.device),
        block=THREADS,
    )
    return codes, scales
