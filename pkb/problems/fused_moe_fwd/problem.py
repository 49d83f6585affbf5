"""Judge's side of fused_moe_fwd.

The baseline does not sort rows by expert within a rank: all experts of a rank share one MLP, so two copies would be for
nothing. Routers are drawn per rank at tiny sizes, where another rank's router is a near miss, and shared elsewhere.
`tiny_wide` has more tokens than in the catalogue, too few for float8 to show; `tiny_3d`, hidden states of three
dimensions, is not in it. Beyond the catalogue every token is judged in bf16, since one that is left out disappears in
the norm of a large result.
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
    layers,
    permuted_router,
    projections_of,
    tokens_with_margin,
)
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Rank r has `rows` + `more` (r mod 3) tokens; `lead` times as many, in three dimensions, where there is `lead`.
PROBLEM = Problem(
    number=31,
    group="moe",
    parallelism="ep",
    origin="VeOmni fused MoE forward with expert parallelism",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 11, "more": 3, "hidden": 24, "inner": 20, "num_experts": 8, "top_k": 2, "tiny": True},
        "tiny_wide": {"rows": 25, "more": 2, "hidden": 24, "inner": 20, "num_experts": 16, "top_k": 4, "tiny": True},
        "tiny_3d": {
            "rows": 5,
            "more": 1,
            "lead": 2,
            "hidden": 18,
            "inner": 26,
            "num_experts": 8,
            "top_k": 3,
            "tiny": True,
        },
        "base": {"rows": 1024, "hidden": 1024, "inner": 128, "num_experts": 8, "top_k": 2},
        "large": {"rows": 8192, "hidden": 7168, "inner": 2048, "num_experts": 64, "top_k": 8},
    },
    check=relative(bf16=2e-2, fp32=2e-3, rows=blocks(bf16=1e-1)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, hidden, top_k, index = size["num_experts"], size["hidden"], size["top_k"], draw.index
    is_tiny = size.get("tiny", False)
    gate_weight, bias = permuted_router(draw, num_experts, hidden, own=is_tiny)
    # At base and large sizes all routers have a bias, so that the load does not change with the draw.
    gate_bias = None if is_tiny and index % 3 == 2 else bias
    num_tokens = (size["rows"] + size.get("more", 0) * (draw.rank % 3)) * size.get("lead", 1)
    tokens = tokens_with_margin(draw, num_tokens, gate_weight, gate_bias, top_k)
    if "lead" in size:
        tokens = tokens.view(size["lead"], -1, hidden)
    arguments = (tokens, gate_weight, gate_bias, *layers(draw, hidden, size["inner"], bias=index % 2 == 0))
    if index % 3 == 0:
        return (*arguments, num_experts, top_k)
    return (*arguments, num_experts, top_k, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    mlps = [gated_mlp(*projections) for projections in projections_of(inputs_of_all_ranks)]
    return batch_of(inputs_of_all_ranks, mlps, top_k=inputs_of_all_ranks[0][7]).answers()


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    return forward_cost(size, world_size, dtype)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    projections, top_k = projections_of(inputs_of_all_ranks), inputs_of_all_ranks[0][7]
    batch = batch_of(inputs_of_all_ranks, [gated_mlp(*one) for one in projections], top_k)
    yield from forward_near_misses(batch, inputs_of_all_ranks, projections, top_k)
