"""Judge's side of moe_ep_narrow.

As in fused_moe_fwd, rows are not sorted by expert within a rank. `tiny_own_router` is not in the catalogue: routers
that differ by rank, so that a foreign one shows, and hidden states of three dimensions. All tokens have a margin, so a
choice by rounded p is the same one and no near miss. The last expert is empty in odd draws at tiny sizes alone, so that
elsewhere the load does not change with the draw.
With two ranks there would be one expert in a block and nothing to exchange, so that size is left out; one
rank is the case of as many experts as ranks. Some draws give the group of the own block, which is the group that None
stands for.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import blocks, relative
from pkb.problems._draw import Draw
from pkb.problems._moe import (
    batch_of,
    forward_cost,
    forward_near_misses,
    gated_mlp,
    projections_of,
    sloped_arguments,
)
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# `slope` is the bias of the first expert. There are half as many experts as ranks, in draws 2, 5, ... at tiny sizes as
# many.
PROBLEM = Problem(
    number=51,
    group="moe",
    parallelism="ep in dp replicas",
    origin="VeOmni fused MoE with expert parallelism within replicas",
    world_sizes=(1, 4, 8),
    sizes={
        "tiny": {"rows": 14, "hidden": 24, "inner": 20, "slope": 1.0, "tiny": True},
        "tiny_own_router": {
            "rows": 14,
            "lead": 2,
            "hidden": 24,
            "inner": 20,
            "slope": 1.0,
            "tiny": True,
            "own_router": True,
        },
        "base": {"rows": 1024, "hidden": 1024, "inner": 128, "slope": 0.25},
        "large": {"rows": 16384, "hidden": 4096, "inner": 2048, "slope": 1.0},
    },
    check=relative(bf16=2e-2, fp32=2e-3, rows=blocks(bf16=1e-1)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index, is_tiny = draw.world_size, draw.index, size.get("tiny", False)
    num_experts = world_size if is_tiny and index % 3 == 2 else max(1, world_size // 2)
    top_k = 1 if is_tiny and index % 2 == 1 else min(2, num_experts)
    arguments = sloped_arguments(size, draw, num_experts, top_k)
    if index % 3 == 0:
        return arguments
    # A block of as many ranks as experts, or all ranks.
    return (*arguments, Group.inner(world_size, num_experts) if index % 3 == 1 or index % 2 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    mlps = [gated_mlp(*projections) for projections in projections_of(inputs_of_all_ranks)]
    num_experts, top_k = inputs_of_all_ranks[0][6:8]
    return batch_of(inputs_of_all_ranks, mlps, top_k, _blocks(world_size, num_experts)).answers()


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    num_experts = max(1, world_size // 2)
    return forward_cost({**size, "num_experts": num_experts, "top_k": min(2, num_experts)}, num_experts, dtype)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, ranks = len(expected), range(len(expected))
    projections, (num_experts, top_k) = projections_of(inputs_of_all_ranks), inputs_of_all_ranks[0][6:8]
    mlps = [gated_mlp(*one) for one in projections]
    batch = batch_of(inputs_of_all_ranks, mlps, top_k, _blocks(world_size, num_experts))
    yield from forward_near_misses(batch, inputs_of_all_ranks, projections, top_k)
    if world_size == 1:
        return
    yield "layers of the first block in all blocks", batch.answers(mlps=[mlps[:num_experts]] * world_size)
    block = [r // num_experts for r in ranks]
    shifted = [[mlps[(b + i) % world_size] for i in range(num_experts)] for b in block]
    yield "number of the block taken for its first rank", batch.answers(mlps=shifted)
    in_world = [[mlps[(r + i) % world_size] for i in range(num_experts)] for r in ranks]
    yield "rank in the world taken for the block's first rank", batch.answers(mlps=in_world)
    step = world_size // num_experts
    strided = [[mlps[r % step + i * step] for i in range(num_experts)] for r in ranks]
    yield "blocks of every second rank", batch.answers(mlps=strided)
    # The world dealt out to the experts in shares: expert i on each of the ranks from i W/E on.
    spread = [[mlps[i * step] for i in range(num_experts)]] * world_size
    yield "group taken for the world", batch.answers(mlps=spread)


def _blocks(world_size: int, num_experts: int) -> list[tuple[int, ...]]:
    """For each rank its block of as many ranks as there are experts."""
    first = [rank // num_experts * num_experts for rank in range(world_size)]
    return [tuple(range(f, f + num_experts)) for f in first]
