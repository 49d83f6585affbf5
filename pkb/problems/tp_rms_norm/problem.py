"""Judge's side of tp_rms_norm."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `hidden` counts the columns of all ranks, `hidden_per_rank` those of one.
PROBLEM = Problem(
    number=18,
    group="norm",
    parallelism="tp",
    origin="tensor-parallel RMSNorm of inference engines (vLLM's MiniMax-Text-01)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": (37,), "hidden_per_rank": 48},
        "tiny_3d": {"rows": (3, 5), "hidden_per_rank": 48},
        "base": {"rows": (1024,), "hidden_per_rank": 1024},
        "large": {"rows": (65536,), "hidden_per_rank": 2048},
        "decode": {"rows": (8,), "hidden": 8192},
    },
    check=relative(bf16=1e-2, fp32=1e-5, rows=2e-2),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, float]:
    rows, width = size["rows"], _width(size, draw.world_size)
    # Norms differ by row, so that swapped rows show, and by rank, so that a rank's own mean shows.
    row_scale = draw.shared_uniform(-4.0, 4.0, *rows, 1).exp2()
    row_scale.view(-1)[0] = 0.0
    x = draw.normal(*rows, width, scale=1 + draw.rank / 2) * row_scale
    epsilon = 1e-1 if draw.index % 3 == 2 else 1e-5
    return x.to(draw.dtype), draw.normal(width), epsilon


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    epsilon = inputs_of_all_ranks[0][2]
    whole = torch.cat([x.double() for x, _, _ in inputs_of_all_ranks], dim=-1)
    normed = whole / (whole.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt()
    weights = [weight.double() for _, weight, _ in inputs_of_all_ranks]
    return [part * weight for part, weight in zip(normed.chunk(world_size, dim=-1), weights, strict=True)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # An all-reduce of one float32 a row by slices, or added by a switch; x stays on chip between sum and
    # scaling.
    num_rows, width = prod(size["rows"]), _width(size, world_size)
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    return Cost(
        link_bytes=4 * num_rows * passes,
        hbm_bytes=(2 * num_rows + 1) * width * dtype_bytes(dtype),
        flops=4 * num_rows * width,
    )


def near_misses(
    expected: list[Any], inputs_of_all_ranks: list[tuple[torch.Tensor, torch.Tensor, float]]
) -> Iterator[tuple[str, list[Any]]]:
    world_size, epsilon = len(expected), inputs_of_all_ranks[0][2]
    own = [x.double().pow(2).mean(dim=-1, keepdim=True) for x, _, _ in inputs_of_all_ranks]
    mean = torch.stack(own).mean(dim=0)
    shifted = mean.flatten().roll(1).view_as(mean)
    yield "another row's mean", [_scaled(one, shifted + epsilon) for one in inputs_of_all_ranks]
    yield "mean left out of the root", [_scaled(one, mean**2 + epsilon) for one in inputs_of_all_ranks]
    swapped = [one[1].flip(0) for one in inputs_of_all_ranks]
    backwards = [(x, weight, e) for (x, _, e), weight in zip(inputs_of_all_ranks, swapped, strict=True)]
    yield "weight read backwards", [_scaled(one, mean + epsilon) for one in backwards]
    if epsilon >= 1e-2:
        width = inputs_of_all_ranks[0][1].shape[0]
        divided = mean + epsilon / (world_size * width)
        yield "epsilon inside the sum", [_scaled(one, divided) for one in inputs_of_all_ranks]
        yield "epsilon left out", [_scaled(one, mean) for one in inputs_of_all_ranks]
    if world_size == 1:
        return
    local = [_scaled(one, m + epsilon) for one, m in zip(inputs_of_all_ranks, own, strict=True)]
    yield "own mean in place of the mean over all ranks", local
    divided = world_size * mean + epsilon
    yield "sum divided by the local width", [_scaled(one, divided) for one in inputs_of_all_ranks]
    others = [(x, inputs_of_all_ranks[rank - 1][1], e) for rank, (x, _, e) in enumerate(inputs_of_all_ranks)]
    yield "another rank's weight", [_scaled(one, mean + epsilon) for one in others]


def _scaled(arguments: tuple[torch.Tensor, torch.Tensor, float], square: torch.Tensor) -> torch.Tensor:
    """x / sqrt(square) * weight, where a row of zeros stays zeros."""
    x, weight, _ = arguments
    return x.double() * torch.where(square > 0, square, 1.0).rsqrt() * weight.double()


def _width(size: Size, world_size: int) -> int:
    return int(size["hidden"] // world_size if "hidden" in size else size["hidden_per_rank"])
