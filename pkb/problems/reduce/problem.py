"""Judge's side of reduce."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, Unspecified, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=4,
    group="collective",
    parallelism="any",
    origin="MPI / NCCL Reduce",
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


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor] | tuple[torch.Tensor, int]:
    # The rank factor keeps every rank's part above the tolerance.
    shape = size["shape"]
    tensor = draw.exact_terms(*shape) if draw.exact else draw.normal(*shape, scale=1 + draw.rank)
    if draw.index % 3 == 2:
        return (tensor,)
    return tensor, (draw.index + 1) % draw.world_size


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor | Unspecified]:
    total = torch.stack([tensor.double() for tensor, *_ in inputs_of_all_ranks]).sum(dim=0)
    dst = _dst(inputs_of_all_ranks)
    return [total if rank == dst else Unspecified(tuple(total.shape)) for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # One tensor's bytes pass every link of a chain, or enter dst from a switch that adds; dst reads n, writes
    # n.
    num_elems = prod(size["shape"])
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(
        link_bytes=num_bytes if world_size > 1 else 0,
        hbm_bytes=2 * num_bytes,
        flops=num_elems * (world_size - 1),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, dst = len(expected), _dst(inputs_of_all_ranks)
    if world_size == 1:
        return
    tensors = [tensor for tensor, *_ in inputs_of_all_ranks]
    if dst != 0:
        yield "dst fixed at 0", [expected[dst], *tensors[1:]]
    yield "mean instead of sum", _at(dst, expected[dst] / world_size, tensors)
    yield "own part added twice", _at(dst, expected[dst] + tensors[dst], tensors)
    late = (dst + 1) % world_size
    yield "one rank's part missing", _at(dst, expected[dst] - tensors[late], tensors)


def _at(dst: int, total: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [total if rank == dst else tensor for rank, tensor in enumerate(tensors)]


def _dst(inputs_of_all_ranks: list[tuple[Any, ...]]) -> int:
    _, *root = inputs_of_all_ranks[0]
    return root[0] if root else 0
