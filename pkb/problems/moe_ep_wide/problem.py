"""Judge's side of moe_ep_wide.

As in fused_moe_fwd, rows are not sorted by expert within a rank. `tiny_own_router` is not in the catalogue: routers
that differ by rank, so that a foreign one shows, and hidden states of three dimensions. All tokens have a margin, so a
choice by rounded p is the same one and no near miss. The last expert is empty in odd draws at tiny sizes alone, so that
elsewhere the load does not change with the draw.
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

# `slope` is the bias of the first expert; each rank has `per_rank` experts, where there are not `num_experts` in all.
# Tiny sizes vary both numbers of experts with the draw.
PROBLEM = Problem(
    number=50,
    group="moe",
    parallelism="ep",
    origin="VeOmni fused MoE with expert parallelism",
    world_sizes=(1, 2, 4, 8),
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
        "base": {"rows": 1024, "hidden": 1024, "inner": 128, "slope": 0.25, "per_rank": 2, "top_k": 2},
        "large": {"rows": 4096, "hidden": 7168, "inner": 2048, "slope": 1.0, "num_experts": 256, "top_k": 8},
    },
    check=relative(bf16=2e-2, fp32=2e-3, rows=blocks(bf16=1e-1)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index = draw.world_size, draw.index
    if size.get("tiny", False):
        num_experts = (2 + index % 2) * world_size
        top_k = min(num_experts, 2 + index // 2 % 2)
    else:
        num_experts, top_k = _num_experts(size, world_size), size["top_k"]
    arguments = sloped_arguments(size, draw, num_experts, top_k)
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    mlps = [gated_mlp(*projections) for projections in projections_of(inputs_of_all_ranks)]
    return batch_of(inputs_of_all_ranks, mlps, top_k=inputs_of_all_ranks[0][7]).answers()


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    dims = {"top_k": 2, **size, "num_experts": _num_experts(size, world_size)}
    return forward_cost(dims, world_size, dtype)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    projections, top_k = projections_of(inputs_of_all_ranks), inputs_of_all_ranks[0][7]
    batch = batch_of(inputs_of_all_ranks, [gated_mlp(*one) for one in projections], top_k)
    yield from forward_near_misses(batch, inputs_of_all_ranks, projections, top_k)


def _num_experts(size: Size, world_size: int) -> int:
    return int(size.get("num_experts", size.get("per_rank", 2) * world_size))
