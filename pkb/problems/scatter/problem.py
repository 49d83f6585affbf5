"""Judge's side of scatter."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `shape` is that of a slice.
PROBLEM = Problem(
    number=5,
    group="collective",
    parallelism="any",
    origin="MPI Scatter (NCCL point-to-point)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (5, 7, 3)},
        "tiny_2d": {"shape": (33, 129)},
        "tiny_one": {"shape": (1,)},
        "latency_4kib": {"shape": (2048,)},
        "latency_64kib": {"shape": (32768,)},
        "latency_1mib": {"shape": (524288,)},
        "base": {"shape": (1024, 1024)},
        "large": {"shape": (8192, 8192)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor] | tuple[torch.Tensor, int]:
    is_omitted = draw.index % 3 == 2
    src = 0 if is_omitted else (3 * draw.index + 1) % draw.world_size
    # The receivers' tensors hold numbers too, so that one returned as it was is found out.
    shape = (draw.world_size, *size["shape"]) if draw.rank == src else size["shape"]
    tensor = draw.normal(*shape)
    return (tensor,) if is_omitted else (tensor, src)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    slices = inputs_of_all_ranks[_src(inputs_of_all_ranks)][0]
    return [slices[rank] for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # W-1 slices leave src; src reads all W and writes its own.
    num_bytes = prod(size["shape"]) * dtype_bytes(dtype)
    return Cost(link_bytes=(world_size - 1) * num_bytes, hbm_bytes=(world_size + 1) * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, src = len(expected), _src(inputs_of_all_ranks)
    tensors = [tensor for tensor, *_ in inputs_of_all_ranks]
    yield "dim 0 of src's tensor kept", [one.unsqueeze(0) for one in expected]
    if world_size == 1:
        return
    yield "slice 0 for every rank", [expected[0]] * world_size
    yield "receivers keep their own", [expected[r] if r == src else tensors[r] for r in range(world_size)]
    if src != 0:
        # Rank 0 has but one slice to give.
        yield "src fixed at 0", [tensors[0]] * world_size


def _src(inputs_of_all_ranks: list[tuple[Any, ...]]) -> int:
    _, *root = inputs_of_all_ranks[0]
    return root[0] if root else 0
