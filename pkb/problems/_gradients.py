"""Lists of gradients, their p-norms in float64 and clipping, for the problems that clip gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pkb.problems._check import Expected, exact, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Size

Gradients = Sequence[torch.Tensor | None]

TOTAL = relative(bf16=1e-4, fp32=1e-4)
"""The norm is a float32 sum of exact inputs in either dtype."""


def common_scale(draw: Draw) -> float:
    """2^U(-3, 3) of the draw: without it the norm would be nearly the same in all draws."""
    return float(draw.shared_uniform(-3.0, 3.0).exp2())


def gradients(draw: Draw, size: Size, shapes: Sequence[Any], scale: float) -> list[torch.Tensor | None]:
    """Gradients of the shapes, None for None; `(31, "rank")` stands for (31 + rank,).

    The scale differs by rank, up to twofold either way: with more, one rank's p-th powers would hide the others'.
    In draws mod 4 = 1 it grows from tensor to tensor, from 1e-3 to 1e3 if there are many.
    """
    scale *= size.get("scale", 1.0) * 2.0 ** float(draw.uniform(-1.0, 1.0))
    num_steps = max(1, len(shapes) - 1)
    is_growing = draw.index % 4 == 1
    growth = min(30.0, 1e6 ** (1 / num_steps))
    found: list[torch.Tensor | None] = []
    for place, shape in enumerate(shapes):
        if shape is None:
            found.append(None)
            continue
        dims = (shape[0] + draw.rank,) if shape[-1] == "rank" else shape
        found.append(draw.normal(*dims, scale=scale * (1e3 * growth ** (place - num_steps) if is_growing else 1.0)))
    return found


def max_norm(draw: Draw, size: Size) -> float:
    """A norm that clips, but for every third draw."""
    return 1e6 if draw.index % 3 == 2 else float(size.get("max_norm", 1.0))


def num_elems(shapes: Sequence[Any], rank: int) -> int:
    """Elements of the gradients of the shapes on a rank."""
    sizes = [(shape[0] + rank,) if shape[-1] == "rank" else shape for shape in shapes if shape is not None]
    return sum(torch.Size(dims).numel() for dims in sizes)


def power_sum(grads: Gradients, p: float) -> float:
    """Sum of |g|^p over all elements, in float64."""
    return sum(float((grad.double().abs() ** p).sum()) for grad in grads if grad is not None)


def norm_sum(grads: Gradients, p: float) -> float:
    """Sum of the norms of the tensors, a frequent mistake, to the p-th power."""
    return float(sum(power_sum([grad], p) ** (1 / p) for grad in grads) ** p)


def bf16_power_sum(grads: Gradients, p: float) -> float:
    """Sum of |g|^p one after the other, rounded to bf16 after each addition."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for grad in grads:
        for power in () if grad is None else (grad.float().abs() ** p).bfloat16().flatten():
            total = total + power
    return float(total)


def scaled(grads: Gradients, factor: float) -> list[Any]:
    """Gradients after the call: times the factor, bit-identical where it is 1."""
    if factor == 1.0:
        return [None if grad is None else Expected(grad.clone(), check=exact()) for grad in grads]
    return [None if grad is None else grad.double() * factor for grad in grads]


def clip_factor(total: float, limit: float) -> float:
    """What gradients of the given norm are multiplied by."""
    return limit / total if total > limit else 1.0


def norm(total: float) -> Expected:
    """A norm as it is returned."""
    return Expected(torch.tensor(total, dtype=torch.float64), torch.float32, TOTAL)
