"""Judge's side of clip_grad_norm_ep.

All gradients of a call are of the working dtype: the contract says so, where its source leaves mixed dtypes open.
ep_size changes with the draw at the tiny sizes. Draws mod 8 = 3 leave fsdp_group None, so that D is the rank's own;
`tiny_empty` has no experts in every second draw and no dense gradients in the others; `tiny_small` has norms so small
that an epsilon of 1e-6 shows. That both groups of experts together hold all ranks once makes E the sum over all of
them, in whatever order: exchanged groups give the same answer. The baseline always multiplies, by 1 where nothing is
clipped: an extra pass over memory there, but no wait for the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    number=22,
    group="optimizer",
    parallelism="fsdp x ep",
    origin="VeOmni FSDP2 clip_grad_norm_ with expert parallelism",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"dense": ((13, 7), None, (31, "rank")), "expert": ((5, 4, 6), (17,)), "p": 2.0, "vary": True},
        "tiny_p1": {"dense": ((13, 7), None, (31, "rank")), "expert": ((5, 4, 6), (17,)), "p": 1.0, "vary": True},
        "tiny_p3": {"dense": ((13, 7), None, (31, "rank")), "expert": ((5, 4, 6), (17,)), "p": 3.0, "vary": True},
        "tiny_empty": {"dense": ((13, 7),), "expert": ((19, "rank"), None), "p": 2.0, "vary": True, "empty": True},
        "tiny_small": {
            "dense": ((13, 7), (31, "rank")),
            "expert": ((5, 4, 6),),
            "p": 2.0,
            "vary": True,
            "scale": 2.0**-24,
            "max_norm": 1e-11,
        },
        "base": {"dense": ((1024, 1024),), "expert": ((1024, 1024),), "p": 2.0},
        "large": {"dense": ((2048, 1024),) * 64, "expert": ((8, 4096, 4096),) * 3, "p": 2.0},
    },
    check=relative(bf16=1e-2, fp32=1e-5),
    in_place=("non_ep_grad_tensors", "ep_grad_tensors"),
)


@dataclass(frozen=True)
class Call:
    """Arguments of one rank."""

    dense: Gradients
    expert: Gradients
    limit: float
    p: float = 2.0
    ep_size: int = 1
    fsdp: Group | None = None
    ep_fsdp: Group | None = None
    ep: Group | None = None


Add = Callable[[Gradients, float], float]
"""Sum of the p-th powers of a rank's gradients."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index = draw.world_size, draw.index
    half = max(1, world_size // 2)
    ep_size = (half, world_size, world_size, 1)[index % 4] if size.get("vary", False) else half
    scale = common_scale(draw)
    dense = gradients(draw, size, size["dense"], scale)
    # Times ep_size, so that both lists matter after the division.
    expert = gradients(draw, size, size["expert"], ep_size * scale)
    if size.get("empty", False):
        if index % 2 == 0:
            expert = []
        else:
            dense = [None]
    fsdp = None if index % 8 == 3 else Group.whole(world_size)
    head = dense, expert, max_norm(draw, size), size["p"], ep_size, fsdp
    if ep_size == 1:
        return (*head, Group.whole(world_size)) if index % 2 == 0 else (*head, Group.whole(world_size), None)
    return *head, Group.outer(world_size, ep_size), Group.inner(world_size, ep_size)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Outcome]:
    calls = [Call(*arguments) for arguments in inputs_of_all_ranks]
    answers = zip(calls, _totals(calls), strict=True)
    return [_outcome(call, total, clip_factor(total, call.limit)) for call, total in answers]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Both sums travel to every peer in one exchange, as the groups of experts together hold all ranks. Gradients are
    # read for the norm, and read and written when they are clipped; the division costs no pass of its own.
    count = num_elems(size["dense"], world_size - 1) + num_elems(size["expert"], world_size - 1)
    return Cost(link_bytes=8.0 * (world_size - 1), hbm_bytes=3.0 * count * dtype_bytes(dtype) + 4, flops=3.0 * count)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    calls = [Call(*arguments) for arguments in inputs_of_all_ranks]
    yield from _wrong_factors(calls)
    yield from _wrong_norms(calls)
    if calls[0].ep_size > 1:
        yield from _wrong_divisions(calls)
    if len(expected) > 1:
        yield from _wrong_groups(calls)


def _wrong_factors(calls: list[Call]) -> Iterator[tuple[str, list[Outcome]]]:
    totals = _totals(calls)
    limit = calls[0].limit
    factors = [clip_factor(total, limit) for total in totals]
    yield "never clipped", _outcomes(calls, totals, [1.0] * len(calls))
    whole = [limit / total if total else 1.0 for total in totals]
    yield "scaled to max_norm also from below", _outcomes(calls, totals, whole)
    yield "norm after clipping", _outcomes(calls, [t * f for t, f in zip(totals, factors, strict=True)], factors)
    if 0 < max(totals) < 2e-5:
        epsilon = [min(1.0, limit / (total + 1e-6)) for total in totals]
        yield "1e-6 added to the norm", _outcomes(calls, totals, epsilon)
    right, untouched = _outcomes(calls, totals), _outcomes(calls, totals, [1.0] * len(calls))
    for kept, name in (("non_ep_grad_tensors", "dense"), ("ep_grad_tensors", "expert")):
        yield (
            f"{name} gradients not clipped",
            [
                Outcome(one.result, {**one.arguments, kept: other.arguments[kept]})
                for one, other in zip(right, untouched, strict=True)
            ],
        )


def _wrong_norms(calls: list[Call]) -> Iterator[tuple[str, list[Outcome]]]:
    totals, p = _totals(calls), calls[0].p
    yield "root left out", _outcomes(calls, [total**p for total in totals])
    yield "norms of the tensors added", _outcomes(calls, _totals(calls, norm_sum))
    dense, expert = _totals(calls, expert_add=_nothing), _totals(calls, _nothing, power_sum)
    yield "dense gradients alone", _outcomes(calls, dense)
    yield "expert gradients alone", _outcomes(calls, expert)
    yield "norms of both lists added", _outcomes(calls, [d + e for d, e in zip(dense, expert, strict=True)])
    if p != 2.0:
        yield "p taken for 2", _outcomes(calls, _totals([replace(call, p=2.0) for call in calls]))
    coarse = _totals(calls, bf16_power_sum)
    if any(abs(c / t - 1) > 1e-3 for c, t in zip(coarse, totals, strict=True) if t):
        # Else the roundings happen to cancel.
        yield "accumulated in bf16", _outcomes(calls, coarse)


def _wrong_divisions(calls: list[Call]) -> Iterator[tuple[str, list[Outcome]]]:
    totals, ep_size = _totals(calls), calls[0].ep_size
    undivided = [replace(call, ep_size=1) for call in calls]
    yield "experts not divided", _outcomes(undivided, _totals(undivided))
    factors = [clip_factor(total, call.limit) for total, call in zip(totals, calls, strict=True)]
    yield "division left to the norm", _outcomes(undivided, totals, factors)
    yield (
        "experts divided only if clipped",
        [_outcome(*one) for one in zip(_where_clipped(calls, factors), totals, factors, strict=True)],
    )
    yield "norm of the undivided gradients", _outcomes(calls, _totals(undivided))
    twice = [replace(call, ep_size=ep_size**2) for call in calls]
    yield "experts divided twice", _outcomes(twice, _totals(twice))


def _where_clipped(calls: list[Call], factors: list[float]) -> list[Call]:
    return [call if f != 1.0 else replace(call, ep_size=1) for call, f in zip(calls, factors, strict=True)]


def _wrong_groups(calls: list[Call]) -> Iterator[tuple[str, list[Outcome]]]:
    totals, everyone = _totals(calls), calls[0].fsdp
    alone = [replace(call, fsdp=None, ep_fsdp=None, ep=None) for call in calls]
    yield "own norm", _outcomes(calls, _totals(alone))
    own = [clip_factor(total, call.limit) for total, call in zip(_totals(alone), calls, strict=True)]
    yield "clipped by the own norm", _outcomes(calls, totals, own)
    yield "experts not added over ep_fsdp_group", _outcomes(calls, _totals([replace(c, ep_fsdp=None) for c in calls]))
    yield "dense gradients not added up", _outcomes(calls, _totals([replace(c, fsdp=None) for c in calls]))
    if calls[0].ep_size > 1:
        yield "experts not added over ep_group", _outcomes(calls, _totals([replace(c, ep=None) for c in calls]))
        whole = Group.whole(len(calls))
        yield (
            "experts added over all ranks and ep_group",
            _outcomes(calls, _totals([replace(c, ep_fsdp=whole) for c in calls])),
        )
    if everyone is not None:
        yield "norms of the ranks added", _outcomes(calls, [sum(_totals(alone))] * len(calls))


def _totals(calls: list[Call], dense_add: Add = power_sum, expert_add: Add | None = None) -> list[float]:
    """Norm of all gradients, as each rank gets it from its groups."""
    p = calls[0].p
    dense = _added([dense_add(call.dense, p) for call in calls], [call.fsdp for call in calls])
    divided = [(expert_add or dense_add)(call.expert, p) / call.ep_size**p for call in calls]
    expert = _added(_added(divided, [call.ep_fsdp for call in calls]), [call.ep for call in calls])
    return [float((d + e) ** (1 / p)) for d, e in zip(dense, expert, strict=True)]


def _added(values: list[float], groups: list[Group | None]) -> list[float]:
    """Sum over each rank's part of its group; its own value where it has none."""
    parts = [(rank,) if group is None else group.part_of(rank) for rank, group in enumerate(groups)]
    return [sum(values[peer] for peer in part) for part in parts]


def _nothing(grads: Gradients, p: float) -> float:
    return 0.0


def _outcomes(calls: list[Call], totals: list[float], factors: list[float] | None = None) -> list[Outcome]:
    """Norms returned, and gradients multiplied by the factors, if not by those that fit the norms."""
    if factors is None:
        factors = [clip_factor(total, call.limit) for total, call in zip(totals, calls, strict=True)]
    return [_outcome(*one) for one in zip(calls, totals, factors, strict=True)]


def _outcome(call: Call, total: float, factor: float) -> Outcome:
    # A power of two divides exactly, in any dtype.
    expert = [None if grad is None else grad / call.ep_size for grad in call.expert]
    return Outcome(
        norm(total), {"non_ep_grad_tensors": scaled(call.dense, factor), "ep_grad_tensors": scaled(expert, factor)}
    )
