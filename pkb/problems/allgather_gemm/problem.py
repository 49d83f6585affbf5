"""Judge's side of allgather_gemm."""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `k` is the depth of the whole product, `k_per_rank` that of a shard.
PROBLEM = Problem(
    number=12,
    group="gemm",
    parallelism="tp",
    origin="all-gather + GEMM of tensor-parallel linear layers (Megatron-LM, Flux, async TP)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m": 29, "k_per_rank": 17, "n": 43},
        "base": {"m": 1024, "k": 512, "n": 1024},
        "large": {"m": 16384, "k": 8192, "n": 3584},
        "large_tall": {"m": 65536, "k": 4096, "n": 1024},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
    exact_trial=True,
)

# Depth of a tensor-core tile, to which a kernel pads a shard.
TILE = 16


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = size["m"], _depth(size, draw.world_size), size["n"]
    shard = k // draw.world_size
    if draw.exact:
        return draw.exact_factors(m, shard, num_terms=k), draw.exact_factors(k, n, num_terms=k)
    # B differs by rank, so that another rank's B is found out.
    return draw.normal(m, shard), draw.normal(k, n, scale=k**-0.5)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    products = []
    for _, B in inputs_of_all_ranks:
        slices = B.double().chunk(world_size)
        terms = [shard.double().mm(rows) for (shard, _), rows in zip(inputs_of_all_ranks, slices, strict=True)]
        products.append(torch.stack(terms).sum(dim=0))
    return products


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
    if world_size == 1:
        return
    shards = [shard.double() for shard, _ in inputs_of_all_ranks]
    own_B = [B.double() for _, B in inputs_of_all_ranks]
    depth = shards[0].shape[1]
    yield "rank 0's B on every rank", [expected[0]] * world_size
    arrived = [torch.cat(shards[r:] + shards[:r], dim=1) for r in range(world_size)]
    yield "shards in order of arrival", [A @ B for A, B in zip(arrived, own_B, strict=True)]
    scattered = torch.stack(shards, dim=2).flatten(1)
    yield "columns dealt out one by one", [scattered @ B for B in own_B]
    padding = min(-depth % TILE, depth)
    if padding:
        # The padded end of slice s takes the first columns of the next one, which are counted there again.
        again = torch.cat([shard[:, :padding] for shard in shards[1:]], dim=1)
        rows = [torch.cat([part[:padding] for part in B.split(depth)[1:]]) for B in own_B]
        twice = [want + again @ part for want, part in zip(expected, rows, strict=True)]
        yield "padded slices read the next rank's columns", twice


def _depth(size: Size, world_size: int) -> int:
    return int(size["k"] if "k" in size else size["k_per_rank"] * world_size)
