"""Judge's side of allgather."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=2,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL AllGather",
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


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor]:
    return (draw.normal(*size["shape"]),)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    stacked = torch.stack([tensor for (tensor,) in inputs_of_all_ranks])
    return [stacked] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # W-1 tensors arrive; sending is no less without multicast. The own tensor is read, all W are written.
    num_bytes = prod(size["shape"]) * dtype_bytes(dtype)
    return Cost(link_bytes=(world_size - 1) * num_bytes, hbm_bytes=(1 + world_size) * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    ranks = range(len(expected))
    yield "own entry not written", [_with_zeros_at(expected[rank], rank) for rank in ranks]
    if len(expected) > 1:
        yield "entries in order of distance from the rank", [expected[r].roll(-r, 0) for r in ranks]
        yield "own tensor in every entry", [expected[r][r].expand_as(expected[r]) for r in ranks]
        yield "tail of the last entry not written", [_without_tail(stacked) for stacked in expected]


def _with_zeros_at(stacked: torch.Tensor, entry: int) -> torch.Tensor:
    stacked = stacked.clone()
    stacked[entry] = 0
    return stacked


def _without_tail(stacked: torch.Tensor) -> torch.Tensor:
    """What stores of 16 bytes leave out: zeros behind the last whole one."""
    flat = stacked.flatten().clone()
    elems = 16 // flat.element_size()
    flat[(flat.numel() - 1) // elems * elems :] = 0
    return flat.view_as(stacked)
