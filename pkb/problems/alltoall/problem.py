"""Judge's side of alltoall."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Dim 0 has W blocks of `rows_per_block` rows; a row is [shared_dim // W, *shape], or [*shape] without the
# first.
PROBLEM = Problem(
    number=8,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL AllToAll (equal blocks)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows_per_block": 1, "shape": (5, 7, 3)},
        "tiny_rows": {"rows_per_block": 3, "shape": (11,)},
        "latency_4kib": {"rows_per_block": 1, "shared_dim": 2048, "shape": ()},
        "latency_64kib": {"rows_per_block": 1, "shared_dim": 32768, "shape": ()},
        "latency_1mib": {"rows_per_block": 1, "shared_dim": 524288, "shape": ()},
        "base": {"rows_per_block": 1, "shape": (1024, 1024)},
        "large": {"rows_per_block": 1, "shared_dim": 16384, "shape": (16384,)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor]:
    return (draw.normal(*_shape(size, draw.world_size)),)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    blocks = [tensor.chunk(world_size) for (tensor,) in inputs_of_all_ranks]
    return [torch.cat(addressed) for addressed in zip(*blocks, strict=True)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # All blocks but the own one leave, as many arrive; everything is read once and written once.
    num_bytes = prod(_shape(size, world_size)) * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    sent = [list(tensor.chunk(world_size)) for (tensor,) in inputs_of_all_ranks]
    got = [list(tensor.chunk(world_size)) for tensor in expected]
    ranks = range(world_size)
    without_own = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(got[r])] for r in ranks]
    yield "own block not written", [torch.cat(blocks) for blocks in without_own]
    if world_size == 1:
        return
    yield "nothing moved", [tensor for (tensor,) in inputs_of_all_ranks]
    yield "blocks in order of arrival", [torch.cat(got[r][r:] + got[r][:r]) for r in ranks]
    yield "block of the sender's own number", [torch.cat([sent[s][s] for s in ranks])] * world_size
    rows = got[0][0].shape[0]
    if rows > 1:
        yield "rows dealt out one by one", [_interleaved(tensor, rows) for tensor in expected]


def _interleaved(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows of all blocks in turn: first rows, second rows, ..."""
    return tensor.view(-1, rows, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)


def _shape(size: Size, world_size: int) -> tuple[int, ...]:
    per_block = (size["shared_dim"] // world_size,) if "shared_dim" in size else ()
    return (world_size * size["rows_per_block"], *per_block, *size["shape"])
