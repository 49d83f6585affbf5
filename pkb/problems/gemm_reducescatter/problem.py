"""Judge's side of gemm_reducescatter."""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `m` and `k` are of the whole product, `m_per_rank` and `k_per_rank` a rank's part of them.
PROBLEM = Problem(
    number=16,
    group="gemm",
    parallelism="tp",
    origin="Megatron-LM sequence-parallel RowParallelLinear",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m_per_rank": 9, "k_per_rank": 26, "n": 31},
        "base": {"m": 1024, "k": 512, "n": 1024},
        "large": {"m": 16384, "k": 28672, "n": 8192},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = _rows(size, draw.world_size), _depth(size, draw.world_size), size["n"]
    shard = k // draw.world_size
    if draw.exact:
        return draw.exact_factors(m, shard, num_terms=k), draw.exact_factors(shard, n, num_terms=k)
    # The rank factor keeps every rank's part above the tolerance.
    return draw.normal(m, shard), draw.normal(shard, n, scale=(1 + draw.rank) * k**-0.5)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    # One deep product in place of a sum of products.
    A = torch.cat([A_local.double() for A_local, _ in inputs_of_all_ranks], dim=1)
    B = torch.cat([B_local.double() for _, B_local in inputs_of_all_ranks], dim=0)
    return list(torch.mm(A, B).chunk(world_size))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Rows of the W-1 peers leave in the working dtype; A, B and the own rows pass device memory once.
    m, k, n = _rows(size, world_size), _depth(size, world_size), size["n"]
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=m * n * num_bytes * (world_size - 1) / world_size,
        hbm_bytes=(m * k + k * n + m * n) * num_bytes / world_size,
        flops=2 * m * n * k / world_size,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    if world_size == 1:
        return
    partials = [A.double().mm(B.double()).chunk(world_size) for A, B in inputs_of_all_ranks]
    own = [partials[rank][rank] for rank in range(world_size)]
    yield "own part added twice", [want + part for want, part in zip(expected, own, strict=True)]
    yield "own part missing", [want - part for want, part in zip(expected, own, strict=True)]
    late = [partials[rank - 1][rank] for rank in range(world_size)]
    missing = [want - part for want, part in zip(expected, late, strict=True)]
    yield "finished before the last peer's part had arrived", missing
    last_row = [torch.cat((want[:-1], want[-1:] - part[-1:])) for want, part in zip(expected, late, strict=True)]
    yield "one peer's part missing in the row at the seam", last_row
    total = torch.cat(expected)
    yield "every W-th row instead of a block", [total[rank::world_size] for rank in range(world_size)]


def _rows(size: Size, world_size: int) -> int:
    return int(size["m"] if "m" in size else size["m_per_rank"] * world_size)


def _depth(size: Size, world_size: int) -> int:
    return int(size["k"] if "k" in size else size["k_per_rank"] * world_size)
