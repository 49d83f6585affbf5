"""Judge's side of gemm_allgather."""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `n` counts the columns of all ranks, `n_per_rank` those of one.
PROBLEM = Problem(
    number=14,
    group="gemm",
    parallelism="tp",
    origin="Megatron-LM ColumnParallelLinear with gathered output",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m": 23, "k": 40, "n_per_rank": 21},
        "base": {"m": 1024, "k": 512, "n": 1024},
        "large": {"m": 16384, "k": 8192, "n": 8192},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, width = size["m"], size["k"], _width(size, draw.world_size)
    if draw.exact:
        return draw.exact_factors(m, k, num_terms=k), draw.exact_factors(k, width, num_terms=k)
    # A differs by rank, so that the own A times gathered B is found out.
    return draw.normal(m, k), draw.normal(k, width, scale=k**-0.5)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    A = torch.stack([A.double() for A, _ in inputs_of_all_ranks])
    B = torch.stack([B.double() for _, B in inputs_of_all_ranks])
    want = torch.einsum("smk,skn->msn", A, B).flatten(1)
    width = B.shape[2]
    columns = [slice(first, first + width) for first in range(0, world_size * width, width)]
    regions = [Region(f"columns of rank {s}", (slice(None), part)) for s, part in enumerate(columns)]
    return [Expected(want, regions=tuple(regions))] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The W-1 blocks of the peers arrive; A, the own B and the whole result pass device memory once.
    m, k, width = size["m"], size["k"], _width(size, world_size)
    n = width * world_size
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=m * width * (world_size - 1) * num_bytes,
        hbm_bytes=(m * k + k * width + m * n) * num_bytes,
        flops=2 * m * k * width,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    if world_size == 1:
        return
    everybodys_B = torch.cat([B.double() for _, B in inputs_of_all_ranks], dim=1)
    yield "own A times everybody's B", [A.double() @ everybodys_B for A, _ in inputs_of_all_ranks]
    blocks = [A.double() @ B.double() for A, B in inputs_of_all_ranks]
    m, width = blocks[0].shape
    yield "blocks stacked along dim 0", [torch.cat(blocks).view(m, world_size * width)] * world_size
    arrived = [torch.cat(blocks[r:] + blocks[:r], dim=1) for r in range(world_size)]
    yield "blocks in order of arrival", arrived
    yield "columns dealt out one by one", [torch.stack(blocks, dim=2).flatten(1)] * world_size
    yield "own block everywhere", [block.repeat(1, world_size) for block in blocks]
    own_left_out = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(blocks)] for r in range(world_size)]
    yield "own block not written", [torch.cat(parts, dim=1) for parts in own_left_out]
    whole = torch.cat(blocks, dim=1)
    whole[:, -width:] = 0
    yield "last block not yet there", [whole] * world_size
    # A strided row of the block before is stored one block too far.
    whole = torch.cat(blocks, dim=1)
    whole[-1, -width:] = blocks[-2][-1]
    yield "one row of a block from the block before", [whole] * world_size


def _width(size: Size, world_size: int) -> int:
    return int(size["n"] // world_size if "n" in size else size["n_per_rank"])
