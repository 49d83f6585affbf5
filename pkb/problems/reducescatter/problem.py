"""Judge's side of reducescatter."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `rows` counts dim 0 of the whole tensor, `rows_per_rank` that of a block.
PROBLEM = Problem(
    number=7,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL ReduceScatter",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows_per_rank": 5, "shape": (7, 3)},
        "tiny_2d": {"rows_per_rank": 33, "shape": (129,)},
        "tiny_one": {"rows_per_rank": 1, "shape": (), "exact": True},
        "latency_4kib": {"rows": 2048, "shape": ()},
        "latency_64kib": {"rows": 32768, "shape": ()},
        "latency_1mib": {"rows": 524288, "shape": ()},
        "base": {"rows_per_rank": 1024, "shape": (1024,)},
        "large": {"rows_per_rank": 8192, "shape": (8192,)},
    },
    check=relative(bf16=8e-3, fp32=1e-6, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor]:
    shape = _shape(size, draw.world_size)
    if draw.exact:
        return (draw.exact_terms(*shape),)
    # The rank factor keeps every rank's part above the tolerance.
    return (draw.normal(*shape, scale=1 + draw.rank),)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    total = torch.stack([tensor.double() for (tensor,) in inputs_of_all_ranks]).sum(dim=0)
    return list(total.chunk(world_size))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Every rank sends the W-1 blocks that are not its own, or lets a switch read them; one block is written.
    num_elems, share = prod(_shape(size, world_size)), (world_size - 1) / world_size
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * share, hbm_bytes=num_bytes * (1 + 1 / world_size), flops=num_elems * share)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    if world_size == 1:
        return
    own = [tensor.double().chunk(world_size)[rank] for rank, (tensor,) in enumerate(inputs_of_all_ranks)]
    yield "block 0 on every rank", [expected[0]] * world_size
    yield "mean instead of sum", [block / world_size for block in expected]
    yield "own part added twice", [block + part for block, part in zip(expected, own, strict=True)]
    yield "own part missing", [block - part for block, part in zip(expected, own, strict=True)]
    total = torch.cat(expected)
    if len(total) > world_size:
        yield "every W-th row instead of a block", [total[rank::world_size] for rank in range(world_size)]


def _shape(size: Size, world_size: int) -> tuple[int, ...]:
    rows = size["rows"] if "rows" in size else size["rows_per_rank"] * world_size
    return (rows, *size["shape"])
