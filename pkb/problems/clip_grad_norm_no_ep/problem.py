"""Judge's side of clip_grad_norm_no_ep.

All gradients of a call are of the working dtype: the contract says so, where its source leaves mixed dtypes open.
Draws mod 4 = 3 give no group, so that every rank has a norm of its own; `tiny_empty` has a rank without gradients;
`tiny_small` has norms so small that an epsilon of 1e-6 shows. The baseline always multiplies, by 1 where nothing is
clipped: an extra pass over memory there, but no wait for the device.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pkb.problems._check import Outcome, relative
from pkb.problems._draw import Draw
from pkb.problems._gradients import (
    Gradients,
    bf16_power_sum,
    clip_factor,
    common_scale,
    gradients,
    max_norm,
    norm,
    norm_sum,
    num_elems,
    power_sum,
    scaled,
)
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Shapes of the gradients; (31, "rank") stands for 31 + r elements.
PROBLEM = Problem(
    number=21,
    group="optimizer",
    parallelism="fsdp",
    origin="VeOmni / PyTorch FSDP2 clip_grad_norm_",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shapes": ((13, 7), (31, "rank"), None, (3, 4, 5), (1,)), "p": 2.0},
        "tiny_p1": {"shapes": ((13, 7), (31, "rank"), None, (3, 4, 5), (1,)), "p": 1.0},
        "tiny_p3": {"shapes": ((13, 7), (31, "rank"), None, (3, 4, 5), (1,)), "p": 3.0},
        "tiny_empty": {"shapes": ((9, 5), None, (11, "rank")), "p": 2.0, "empty": True},
        "tiny_small": {"shapes": ((13, 7), (31, "rank")), "p": 2.0, "scale": 2.0**-24, "max_norm": 1e-11},
        "base": {"shapes": ((1024, 1024),) * 3, "p": 2.0},
        "large": {
            "shapes": (((4096, 512),) * 4 + ((11008, 512),) * 2 + ((4096, 1376),) + ((4096,),) * 2) * 16
            + ((4000, 4096),) * 2,
            "p": 2.0,
        },
    },
    check=relative(bf16=1e-2, fp32=1e-5),
    in_place=("grad_tensors",),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    grads = gradients(draw, size, size["shapes"], common_scale(draw))
    if size.get("empty", False) and draw.rank == draw.index % draw.world_size:
        grads = [] if draw.index % 2 == 0 else [None, None]
    limit, p = max_norm(draw, size), size["p"]
    if draw.index % 4 == 3:
        return (grads, limit) if p == 2.0 else (grads, limit, p, None)
    return grads, limit, p, Group.whole(draw.world_size)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Outcome]:
    answers = zip(inputs_of_all_ranks, _totals(inputs_of_all_ranks), strict=True)
    return [_outcome(arguments, total, clip_factor(total, arguments[1])) for arguments, total in answers]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # A float32 goes to every peer. Gradients are read for the norm, and read and written when they are clipped.
    count = num_elems(size["shapes"], world_size - 1)
    return Cost(link_bytes=4.0 * (world_size - 1), hbm_bytes=3.0 * count * dtype_bytes(dtype) + 4, flops=3.0 * count)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    everyone, limit, p = inputs_of_all_ranks, inputs_of_all_ranks[0][1], _p(inputs_of_all_ranks[0])
    totals = _totals(everyone)
    factors = [clip_factor(total, limit) for total in totals]

    def outcomes(of_ranks: list[float], by: list[float] | None = None) -> list[Outcome]:
        """Norms returned, and what the gradients are multiplied by, if not by what fits the norm."""
        by = [clip_factor(total, limit) for total in of_ranks] if by is None else by
        return [_outcome(*one) for one in zip(everyone, of_ranks, by, strict=True)]

    yield "never clipped", outcomes(totals, [1.0] * len(totals))
    yield "scaled to max_norm also from below", outcomes(totals, [limit / total if total else 1.0 for total in totals])
    yield "norm after clipping", outcomes([total * f for total, f in zip(totals, factors, strict=True)], factors)
    yield "root left out", outcomes([total**p for total in totals])
    yield "norms of the tensors added", outcomes(_totals(everyone, norm_sum))
    if p != 2.0:
        yield "p taken for 2", outcomes(_totals([(*one[:2], 2.0, *one[3:]) for one in everyone]))
    coarse = _totals(everyone, bf16_power_sum)
    if any(abs(c / t - 1) > 1e-3 for c, t in zip(coarse, totals, strict=True) if t):
        # Else the roundings happen to cancel.
        yield "accumulated in bf16", outcomes(coarse)
    if 0 < max(totals) < 2e-5:
        yield "1e-6 added to the norm", outcomes(totals, [min(1.0, limit / (total + 1e-6)) for total in totals])
    yield "first gradient forgotten", [_first_forgotten(*one) for one in zip(outcomes(totals), everyone, strict=True)]
    if len(expected) == 1 or len(everyone[0]) < 4 or everyone[0][3] is None:
        return
    own = _totals([one[:3] for one in everyone])
    yield "own norm", outcomes(own)
    yield "clipped by the own norm", outcomes(totals, [clip_factor(total, limit) for total in own])
    yield "norms of the ranks added", outcomes([sum(own)] * len(own))
    yield "mean over ranks in place of the sum", outcomes([total * len(own) ** (-1 / p) for total in totals])


def _totals(everyone: list[tuple[Any, ...]], add: Callable[[Gradients, float], float] = power_sum) -> list[float]:
    """Norm over each rank's group, over the rank alone where it has none."""
    p = _p(everyone[0])
    sums = [add(arguments[0], p) for arguments in everyone]
    groups = [arguments[3] if len(arguments) > 3 else None for arguments in everyone]
    parts = [(rank,) if group is None else group.part_of(rank) for rank, group in enumerate(groups)]
    return [float(sum(sums[peer] for peer in part) ** (1 / p)) for part in parts]


def _outcome(arguments: tuple[Any, ...], total: float, factor: float) -> Outcome:
    return Outcome(norm(total), {"grad_tensors": scaled(arguments[0], factor)})


def _first_forgotten(outcome: Outcome, arguments: tuple[Any, ...]) -> Outcome:
    changed, grads = outcome.arguments["grad_tensors"], arguments[0]
    return Outcome(outcome.result, {"grad_tensors": [*scaled(grads[:1], 1.0), *changed[1:]]})


def _p(arguments: tuple[Any, ...]) -> float:
    return float(arguments[2]) if len(arguments) > 2 else 2.0
