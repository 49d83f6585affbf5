"""Judge's side of fused_moe_fwd_lora.

As in fused_moe_fwd: rows are not sorted by expert within a rank, routers are drawn per rank at tiny sizes, `tiny_wide`
has more tokens than in the catalogue, and every token is judged in bf16. The branch of the down projection cannot be
fed with all of x, whose width is another: the near miss takes as many columns as fit.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pkb.problems._check import blocks, relative
from pkb.problems._draw import Draw
from pkb.problems._moe import (
    Mlp,
    Projections,
    batch_of,
    forward_cost,
    forward_near_misses,
    gated_mlp,
    layers,
    permuted_router,
    projection,
    silu,
    tokens_with_margin,
)
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `rows` + `more` (r mod 3) tokens; `lora` is the rank R of the factors.
PROBLEM = Problem(
    number=32,
    group="moe",
    parallelism="ep",
    origin="VeOmni / xorl MoE forward with LoRA",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {
            "rows": 11,
            "more": 3,
            "hidden": 24,
            "inner": 20,
            "lora": 3,
            "num_experts": 8,
            "top_k": 2,
            "tiny": True,
        },
        "tiny_wide": {
            "rows": 25,
            "more": 2,
            "hidden": 24,
            "inner": 20,
            "lora": 4,
            "num_experts": 16,
            "top_k": 4,
            "tiny": True,
        },
        "base": {"rows": 1024, "hidden": 1024, "inner": 128, "lora": 8, "num_experts": 8, "top_k": 2},
        "large": {"rows": 8192, "hidden": 7168, "inner": 2048, "lora": 64, "num_experts": 64, "top_k": 8},
    },
    check=relative(bf16=2e-2, fp32=2e-3, rows=blocks(bf16=1e-1)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, hidden, inner, index = size["num_experts"], size["hidden"], size["inner"], draw.index
    is_tiny = size.get("tiny", False)
    gate_weight, bias = permuted_router(draw, num_experts, hidden, own=is_tiny)
    gate_bias = None if is_tiny and index % 3 == 2 else bias
    num_tokens = size["rows"] + size.get("more", 0) * (draw.rank % 3)
    tokens = tokens_with_margin(draw, num_tokens, gate_weight, gate_bias, size["top_k"])
    factors = []
    for fan_in, fan_out in ((hidden, inner), (hidden, inner), (inner, hidden)):
        factors.append(draw.normal(size["lora"], fan_in, scale=fan_in**-0.5))
        factors.append(draw.normal(fan_out, size["lora"], scale=size["lora"] ** -0.5))
    dense = layers(draw, hidden, inner, bias=index % 2 == 0)
    arguments = (tokens, gate_weight, gate_bias, *dense, *factors, num_experts, size["top_k"])
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    mlps = [gated_mlp(*_projections(one)) for one in inputs_of_all_ranks]
    return batch_of(inputs_of_all_ranks, mlps, top_k=inputs_of_all_ranks[0][13]).answers()


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The factors are read once. Per row they take 2 R (3 H + 3 I) operations, and folded into the weights 2 R of
    # each weight and none per row.
    dense = forward_cost(size, world_size, dtype)
    width, num_weights = size["hidden"] + size["inner"], 3 * size["hidden"] * size["inner"]
    per_row = 2.0 * size["lora"] * 3 * width
    pairs = (dense.flops - 2 * size["rows"] * size["hidden"] * size["num_experts"]) / (2 * num_weights)
    return replace(
        dense,
        hbm_bytes=dense.hbm_bytes + 3 * size["lora"] * width * dtype_bytes(dtype),
        flops=dense.flops + min(per_row * pairs, 2.0 * size["lora"] * num_weights),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    projections, top_k = [_projections(one) for one in inputs_of_all_ranks], inputs_of_all_ranks[0][13]
    batch = batch_of(inputs_of_all_ranks, [gated_mlp(*one) for one in projections], top_k)
    yield from forward_near_misses(batch, inputs_of_all_ranks, projections, top_k)
    num_factors = inputs_of_all_ranks[0][6].shape[0]
    for name, scale in (("left out", 0.0), ("scaled by 1/R", 1 / num_factors), ("scaled by 2", 2.0)):
        scaled = [gated_mlp(*_projections(one, scale)) for one in inputs_of_all_ranks]
        yield f"branches {name}", replace(batch, mlps=scaled).answers()
    bases = [_projections(one, 0.0) for one in inputs_of_all_ranks]
    mixed = zip(projections, bases, strict=True)
    yield "down's branch left out", replace(batch, mlps=[gated_mlp(*p[:2], b[2]) for p, b in mixed]).answers()
    fed = [_down_fed_with_x(one) for one in inputs_of_all_ranks]
    yield "down's branch fed with x", replace(batch, mlps=fed).answers()
    exchanged = [(*one[:6], *one[8:10], *one[6:8], *one[10:]) for one in inputs_of_all_ranks]
    swapped = [gated_mlp(*_projections(one)) for one in exchanged]
    yield "factors of gate and up exchanged", replace(batch, mlps=swapped).answers()
    if len(expected) == 1:
        return
    # Layers of the expert's rank with the factors of the token's rank.
    foreign = [
        [gated_mlp(*_projections((*host[:6], *home[6:12]))) for host in inputs_of_all_ranks]
        for home in inputs_of_all_ranks
    ]
    yield "factors of the token's rank", batch.answers(mlps=foreign)


def _projections(arguments: tuple[Any, ...], scale: float = 1.0) -> Projections:
    """Gate, up and down with their branches."""
    gate, up, down, gate_A, gate_B, up_A, up_B, down_A, down_B = arguments[3:12]
    return (
        _with_branch(gate, gate_A, gate_B, scale),
        _with_branch(up, up_A, up_B, scale),
        _with_branch(down, down_A, down_B, scale),
    )


def _with_branch(layer: torch.nn.Linear, A: torch.Tensor, B: torch.Tensor, scale: float) -> Mlp:
    dense = projection(layer)
    return lambda rows: dense(rows) + scale * _branch(rows, A, B)


def _branch(rows: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ni,ri,or->no", rows, A.double(), B.double())


def _down_fed_with_x(arguments: tuple[Any, ...]) -> Mlp:
    gate, up, _ = _projections(arguments)
    down, A, B = projection(arguments[5]), arguments[10], arguments[11]

    def apply(rows: torch.Tensor) -> torch.Tensor:
        y = silu(gate(rows)) * up(rows)
        return down(y) + _branch(rows[:, : y.shape[1]], A, B)

    return apply
