"""Rows of a sharded table by one kernel that asks, serves and places, chunk by chunk, without waiting on the host."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"look_up<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
CHUNK_BYTES, MAX_CHUNK_ROWS = 128 * 1024, 256
COUNT_BYTES = REQUEST_BYTES = 8
# Units of the rows of one chunk, which 8 ranks ask for, are counted in 32 bits.
MAX_ROW_UNITS = 2**28
WORKSPACES = pkb.cuda.Workspaces()


def solution(indices: torch.Tensor, local_shard: torch.Tensor) -> torch.Tensor:
    num_rows, width = local_shard.shape
    row_bytes = width * local_shard.element_size()
    out = local_shard.new_empty((len(indices), width))
    if indices.dtype != torch.int64:
        raise ValueError(f"embedding_lookup: indices are {indices.dtype}, must be torch.int64")
    # Not where only this rank asks for nothing: others may ask it.
    if num_rows == 0 or width == 0:
        return out
    unit_bytes, c_type = pkb.cuda.unit_of([row_bytes])
    if row_bytes // unit_bytes >= MAX_ROW_UNITS:
        raise ValueError(f"embedding_lookup: a row has {row_bytes} bytes, must have fewer than 2^28 of {unit_bytes}")
    world_size = dist.get_world_size()
    blocks = pkb.cuda.grid_blocks(pkb.cuda.MAX_BLOCKS, out.device, items_per_block=1)
    chunk_rows = min(MAX_CHUNK_ROWS, max(1, CHUNK_BYTES // row_bytes))
    count_bytes = 2 * world_size * pkb.cuda.MAX_BLOCKS * COUNT_BYTES
    chunk_bytes = chunk_rows * (world_size * REQUEST_BYTES + row_bytes)
    # Nothing in it depends on the number of rows, so tables of one row length share it.
    space = WORKSPACES.get(row_bytes, count_bytes + 2 * blocks * chunk_bytes, out.device)
    MODULE.kernel(f"look_up<{c_type}>").launch(
        space.peers,
        indices.contiguous(),
        pkb.cuda.aligned(local_shard),
        out,
        len(indices),
        num_rows,
        row_bytes // unit_bytes,
        np.int32(chunk_rows),
        space.rank,
        space.world_size,
        grid=blocks,
        block=THREADS,
    )
    return out
