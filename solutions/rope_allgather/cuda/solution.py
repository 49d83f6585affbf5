"""Rotary embedding in the kernel that gathers: shards are rotated once, on their way to the peers."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES, Side

# A unit of one element where half a head does not come out even in packs.
ELEMENT_TYPES = {2: "unsigned short", 4: "unsigned int"}
KERNELS = {
    (dtype, is_packed): f"rotate_and_gather<{c_type}, {'uint4' if is_packed else ELEMENT_TYPES[dtype.itemsize]}>"
    for dtype, c_type in C_TYPES.items()
    for is_packed in (True, False)
}
MODULE = pkb.cuda.compile(Path(__file__).with_name("kernel.cu"), kernels=list(KERNELS.values()))
THREADS = pkb.cuda.EXCHANGE_THREADS
MAX_UNITS = 2**31
WORKSPACES = pkb.cuda.Workspaces()


def solution(
    q_local: torch.Tensor, k_local: torch.Tensor, cos_local: torch.Tensor, sin_local: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length, num_heads, head_dim = q_local.shape
    dtype, num_elems = q_local.dtype, q_local.numel()
    tensors = (q_local, k_local, cos_local, sin_local)
    if dtype not in C_TYPES or any(tensor.dtype != dtype for tensor in tensors) or head_dim % 2:
        raise ValueError(
            f"rope_allgather: dtypes are {[str(tensor.dtype) for tensor in tensors]} and D is {head_dim}; must be one"
            f" of {sorted(map(str, C_TYPES))} and even"
        )
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    all_q, all_k = (q_local.new_empty((batch, world_size * length, num_heads, head_dim)) for _ in range(2))
    if num_elems == 0:
        return all_q, all_k
    is_packed = head_dim // 2 * dtype.itemsize % pkb.cuda.PACK_BYTES == 0
    unit_elems = pkb.cuda.PACK_BYTES // dtype.itemsize if is_packed else 1
    if num_elems // unit_elems >= MAX_UNITS:
        raise ValueError(f"rope_allgather: q has {num_elems} elements, must have fewer than 2^31 of {unit_elems}")
    num_bytes = 2 * world_size * 2 * num_elems * dtype.itemsize
    space = WORKSPACES.get((num_elems, dtype), num_bytes, q_local.device)
    MODULE.kernel(KERNELS[dtype, is_packed]).launch(
        space.peers,
        *(pkb.cuda.aligned(tensor) for tensor in tensors),
        all_q,
        all_k,
        num_elems // unit_elems // 2,
        np.int32(head_dim // 2 // unit_elems),
        np.int32(num_heads),
        Side.cut(q_local.shape, 1, world_size).layout(dtype.itemsize, unit_elems * dtype.itemsize),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_elems // unit_elems, q_local.device),
        block=THREADS,
    )
    return all_q, all_k
