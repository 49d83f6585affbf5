"""Judge's side of allgather_gemm_AT."""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `k` is the depth of the whole product, `k_per_rank` that of a shard.
PROBLEM = Problem(
    number=11,
    group="gemm",
    parallelism="tp",
    origin="all-gather + GEMM of tensor-parallel linear layers (Megatron-LM, Flux, async TP)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m": 37, "k_per_rank": 24, "n": 19},
        "base": {"m": 1024, "k": 512, "n": 1024},
        "large": {"m": 16384, "k": 8192, "n": 3584},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = size["m"], _depth(size, draw.world_size), size["n"]
    shard = k // draw.world_size
    if draw.exact:
        return draw.exact_factors(m, shard, num_terms=k), draw.exact_factors(k, n, num_terms=k)
    # B differs by rank, so that another rank's B is found out.
    return draw.normal(m, shard), draw.normal(k, n, scale=k**-0.5)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    A = torch.cat([shard.double() for shard, _ in inputs_of_all_ranks], dim=1)
    return [torch.einsum("mk,kn->mn", A, B.double()) for _, B in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The W-1 shards of the peers arrive; A, the own B and the result pass device memory once.
    m, k, n = size["m"], _depth(size, world_size), size["n"]
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=m * k * num_bytes * (world_size - 1) / world_size,
        hbm_bytes=(m * k + k * n + m * n) * num_bytes,
        flops=2 * m * n * k,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    shards = [shard.double() for shard, _ in inputs_of_all_ranks]
    own_B = [B.double() for _, B in inputs_of_all_ranks]
    m, depth = shards[0].shape
    untransposed = torch.cat([shard.reshape(depth, m).t() for shard in shards], dim=1)
    yield "memory of a shard taken for that of its transpose", [untransposed @ B for B in own_B]
    if world_size == 1:
        return
    yield "rank 0's B on every rank", [expected[0]] * world_size
    arrived = [torch.cat(shards[r:] + shards[:r], dim=1) for r in range(world_size)]
    yield "shards in order of arrival", [A @ B for A, B in zip(arrived, own_B, strict=True)]
    stacked = torch.cat(shards).view(m, world_size * depth)
    yield "shards gathered along dim 0", [stacked @ B for B in own_B]
    scattered = torch.stack(shards, dim=2).flatten(1)
    yield "columns dealt out one by one", [scattered @ B for B in own_B]
    # The slice that arrives last is the one of the rank before.
    last = [shards[r - 1] @ B.chunk(world_size)[r - 1] for r, B in enumerate(own_B)]
    yield "finished before the last slice", [want - part for want, part in zip(expected, last, strict=True)]


def _depth(size: Size, world_size: int) -> int:
    return int(size["k"] if "k" in size else size["k_per_rank"] * world_size)
