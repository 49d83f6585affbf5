"""Judge's side of broadcast."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=3,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL Broadcast",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (5, 7, 3)},
        "tiny_2d": {"shape": (33, 129)},
        "tiny_one": {"shape": (1,)},
        "latency_4kib": {"shape": (2048,)},
        "latency_64kib": {"shape": (32768,)},
        "latency_1mib": {"shape": (524288,)},
        "base": {"shape": (1024, 1024)},
        "large": {"shape": (16384, 16384)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor] | tuple[torch.Tensor, int]:
    # Every rank holds random numbers, so that a rank that keeps its own is found out.
    tensor = draw.normal(*size["shape"])
    if draw.index % 3 == 2:
        return (tensor,)
    return tensor, (3 * draw.index + 1) % draw.world_size


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    return [inputs_of_all_ranks[_src(inputs_of_all_ranks)][0]] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Each byte enters a receiver once (pipelined chain or multicast); src reads its tensor and writes a
    # result.
    num_bytes = prod(size["shape"]) * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes if world_size > 1 else 0, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, src = len(expected), _src(inputs_of_all_ranks)
    if world_size == 1:
        return
    if src != 0:
        yield "src fixed at 0", [inputs_of_all_ranks[0][0]] * world_size
    yield "the tensor of the rank after src", [inputs_of_all_ranks[(src + 1) % world_size][0]] * world_size
    stale = [torch.zeros_like(tensor) for tensor in expected]
    stale[src] = expected[src]
    yield "receivers read before src has written", stale


def _src(inputs_of_all_ranks: list[tuple[Any, ...]]) -> int:
    _, *root = inputs_of_all_ranks[0]
    return root[0] if root else 0
