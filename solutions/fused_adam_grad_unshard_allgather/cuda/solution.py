"""Adam on a shard whose new weights leave for all peers as they are computed, in one kernel."""

import ctypes
from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"adam_all_gather<{c_type}>" for c_type in C_TYPES.values()]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WORKSPACES = pkb.cuda.Workspaces()


def solution(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    world_size, num_elems, dtype = dist.get_world_size(), master_shard.numel(), master_shard.dtype
    vectors = (grad_shard, master_shard, exp_avg, exp_avg_sq)
    if dtype not in C_TYPES or any(vector.dtype != dtype or vector.numel() != num_elems for vector in vectors):
        given = [f"{vector.dtype} {tuple(vector.shape)}" for vector in vectors]
        raise ValueError(
            f"fused_adam: vectors are {given}, must have one length and one floating dtype of 16 or 32 bits"
        )
    out = master_shard.new_empty(world_size * num_elems)
    if num_elems == 0:
        return out
    num_packs = -(-num_elems * dtype.itemsize // pkb.cuda.PACK_BYTES)
    num_bytes = 2 * world_size * num_packs * pkb.cuda.PACK_BYTES
    space = WORKSPACES.get((num_elems, dtype), num_bytes, out.device)
    step_size, correction = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    MODULE.kernel(f"adam_all_gather<{C_TYPES[dtype]}>").launch(
        space.peers,
        *map(pkb.cuda.aligned, vectors),
        out,
        num_elems,
        (ctypes.c_float * 7)(beta1, 1 - beta1, beta2, 1 - beta2, step_size, correction, eps),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_packs, out.device),
        block=THREADS,
    )
    return out
