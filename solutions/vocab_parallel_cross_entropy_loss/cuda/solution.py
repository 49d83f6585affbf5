"""Cross entropy over a split vocabulary in one kernel: ranks exchange a summary of each row, not three reductions."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"cross_entropy<{c_type}>" for c_type in C_TYPES.values()]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
WARPS = THREADS // 32
SUMMARY_BYTES = 16
WORKSPACES = pkb.cuda.Workspaces()


def solution(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    *tokens, num_columns = vocab_parallel_logits.shape
    dtype, num_rows = vocab_parallel_logits.dtype, target.numel()
    if dtype not in C_TYPES or target.dtype != torch.int64 or list(target.shape) != tokens:
        raise ValueError(
            f"vocab_parallel_cross_entropy_loss: logits are {dtype} {tuple(vocab_parallel_logits.shape)}, target is"
            f" {target.dtype} {tuple(target.shape)}; must be one of {sorted(map(str, C_TYPES))} and torch.int64, of the"
            " same tokens"
        )
    out = vocab_parallel_logits.new_empty(tokens)
    if num_rows == 0:
        return out
    num_bytes = 2 * dist.get_world_size(group) * num_rows * SUMMARY_BYTES
    space = WORKSPACES.get((num_rows, num_columns, dtype), num_bytes, out.device, group)
    row_packs = -(-num_columns * dtype.itemsize // pkb.cuda.PACK_BYTES)
    tile_rows = pkb.cuda.rows_per_tile(row_packs, WARPS)
    MODULE.kernel(f"cross_entropy<{C_TYPES[dtype]}>").launch(
        space.peers,
        pkb.cuda.aligned(vocab_parallel_logits),
        target.contiguous(),
        out,
        num_rows,
        num_columns,
        np.int32(tile_rows),
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(num_rows, out.device, tile_rows),
        block=THREADS,
    )
    return out
