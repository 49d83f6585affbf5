"""All-to-all of quantized chunks in one kernel: codes and scales travel, their owner multiplies."""

from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

SCALE_TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}
C_TYPES = {**SCALE_TYPES, torch.float16: "__half", torch.float8_e4m3fn: "unsigned char"}
MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"dequantize<{y}, {s}, {n}>" for y, s, n in product(C_TYPES.values(), SCALE_TYPES.values(), (4, 1))],
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(local_y: torch.Tensor, local_s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    num_chunks = local_y.shape[0]
    chunk_elems = local_y.numel() // num_chunks
    assert chunk_elems % block_size == 0, "the elements of a chunk have to be a multiple of block_size"
    if local_s.dtype not in SCALE_TYPES:
        raise ValueError(
            f"blocked_fp8_dequantize: local_s is {local_s.dtype}, must be one of {sorted(map(str, SCALE_TYPES))}"
        )
    # Rarer dtypes travel as floats.
    y = local_y if local_y.dtype in C_TYPES else local_y.float()
    out = torch.empty(local_y.shape, dtype=torch.float32, device=local_y.device)
    if chunk_elems == 0:
        return out
    elems = 4 if block_size % 4 == 0 else 1
    slot_bytes = -(-chunk_elems * y.element_size() // pkb.cuda.PACK_BYTES) * pkb.cuda.PACK_BYTES
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    num_bytes = 2 * world_size * (slot_bytes + 4 * (chunk_elems // block_size))
    space = WORKSPACES.get((chunk_elems, y.dtype, block_size), num_bytes, out.device)
    MODULE.kernel(f"dequantize<{C_TYPES[y.dtype]}, {SCALE_TYPES[local_s.dtype]}, {elems}>").launch(
        space.peers,
        pkb.cuda.aligned(y),
        local_s.contiguous(),
        out,
        chunk_elems,
        slot_bytes,
        np.int32(block_size),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(chunk_elems // elems, out.device),
        block=THREADS,
    )
    return out
