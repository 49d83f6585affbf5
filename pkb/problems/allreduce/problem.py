"""Judge's side of allreduce."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=1,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL AllReduce",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (5, 7, 3)},
        "tiny_2d": {"shape": (33, 129)},
        "tiny_one": {"shape": (1,), "exact": True},
        "latency_4kib": {"shape": (2048,)},
        "latency_64kib": {"shape": (32768,)},
        "latency_1mib": {"shape": (524288,)},
        "base": {"shape": (1024, 1024)},
        "large": {"shape": (16384, 16384)},
    },
    check=relative(bf16=8e-3, fp32=1e-6, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor]:
    if draw.exact:
        return (draw.exact_terms(*size["shape"]),)
    # The rank factor keeps every rank's part above the tolerance.
    return (draw.normal(*size["shape"], scale=1 + draw.rank),)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    total = sum(tensor.double() for (tensor,) in inputs_of_all_ranks)
    return [total] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Peer copies: reduce-scatter and all-gather each move n (W-1)/W elements into a rank. With a switch that
    # adds and multicasts: n elements leave for the sums of all slices, n/W for the copies of the own slice's
    # sum.
    num_elems, share = prod(size["shape"]), (world_size - 1) / world_size
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(
        link_bytes=num_bytes * min(2 * share, 1 + 1 / world_size),
        hbm_bytes=2 * num_bytes,
        flops=num_elems * share,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    if world_size == 1:
        return
    own = [tensor.double() for (tensor,) in inputs_of_all_ranks]
    yield "mean instead of sum", [total / world_size for total in expected]
    yield "own part added twice", [total + part for total, part in zip(expected, own, strict=True)]
    yield "own part missing", [total - part for total, part in zip(expected, own, strict=True)]
    half = max(1, expected[0].numel() // 2)
    yield (
        "second half not summed",
        [
            torch.cat((total.flatten()[:half], part.flatten()[half:])).view_as(total)
            for total, part in zip(expected, own, strict=True)
        ],
    )
