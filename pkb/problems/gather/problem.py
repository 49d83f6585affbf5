"""Judge's side of gather."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=6,
    group="collective",
    parallelism="any",
    origin="MPI Gather (NCCL point-to-point)",
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
    tensor = draw.normal(*size["shape"])
    if draw.index % 3 == 2:
        return (tensor,)
    return tensor, (draw.index + 1) % draw.world_size


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    tensors = [tensor for tensor, *_ in inputs_of_all_ranks]
    dst = _dst(inputs_of_all_ranks)
    return [torch.stack(tensors) if rank == dst else tensors[rank] for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # W-1 tensors enter dst; dst reads its own and writes all W.
    num_bytes = prod(size["shape"]) * dtype_bytes(dtype)
    return Cost(link_bytes=(world_size - 1) * num_bytes, hbm_bytes=(1 + world_size) * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, dst = len(expected), _dst(inputs_of_all_ranks)
    tensors = [tensor for tensor, *_ in inputs_of_all_ranks]
    stacked = expected[dst]
    if world_size == 1:
        yield "no dimension of ranks", tensors
        return
    if dst != 0:
        yield "dst fixed at 0", [stacked, *tensors[1:]]
    late = (dst - 1) % world_size
    for name, entry in (("own entry not written", dst), ("returned before the last peer had written", late)):
        missing = stacked.clone()
        missing[entry] = 0
        yield name, _at(dst, missing, tensors)
    yield "entries in order of arrival", _at(dst, stacked.roll(-dst - 1, 0), tensors)
    yield "result on every rank", [stacked] * world_size


def _at(dst: int, stacked: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [stacked if rank == dst else tensor for rank, tensor in enumerate(tensors)]


def _dst(inputs_of_all_ranks: list[tuple[Any, ...]]) -> int:
    _, *root = inputs_of_all_ranks[0]
    return root[0] if root else 0
