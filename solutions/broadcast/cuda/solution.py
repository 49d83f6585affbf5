"""Broadcast by peer stores of one kernel: straight from the root, or passed on by the receivers where it is large."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

MODULE = pkb.cuda.compile(Path(__file__).with_name("kernel.cu"))
THREADS = pkb.cuda.EXCHANGE_THREADS
# From here on one more barrier costs less than the bytes that leave the root W-1 times.
MIN_FORWARDED_BYTES = 1024 * 1024
WORKSPACES = pkb.cuda.Workspaces()


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    world_size, num_bytes = dist.get_world_size(), tensor.numel() * tensor.element_size()
    if world_size == 1 or num_bytes == 0:
        return tensor.clone(memory_format=torch.contiguous_format)
    num_packs = -(-num_bytes // pkb.cuda.PACK_BYTES)
    is_forwarded = world_size > 2 and num_bytes >= MIN_FORWARDED_BYTES
    items = -(-num_packs // (world_size - 1)) if is_forwarded else num_packs
    space = WORKSPACES.get(num_bytes, 2 * num_packs * pkb.cuda.PACK_BYTES, tensor.device)
    out = tensor.new_empty(tensor.shape)
    MODULE.kernel("broadcast_forwarded" if is_forwarded else "broadcast_direct").launch(
        space.peers,
        pkb.cuda.aligned(tensor),
        out,
        num_bytes,
        np.int32(src),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(items, tensor.device),
        block=THREADS,
    )
    return out
