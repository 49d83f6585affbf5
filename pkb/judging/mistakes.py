"""Mistakes in one collective of a program: another reduction, parts left out, out of order, or cut another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import torch

from pkb.judging.replay import Alteration, Parts, Site
from pkb.records.verdict import Cause

_OPS = {"SUM": "sum", "MAX": "maximum", "MIN": "minimum", "PRODUCT": "product"}
_MAX_PAIRS = 6
"""Swaps of two ranks are tried among so many pairs at most."""
_MAX_DIMS = 4
"""Of how many dimensions of a part it is tried whether they were taken for another."""


def mistakes_at(site: Site) -> Iterator[tuple[Cause, str, Alteration]]:
    """Cause, clause and alteration of the mistakes that can be made in a collective, the likely ones first."""
    if site.group_size < 2:
        return
    if site.op:
        yield from _reductions(site)
    if site.name == "batch_isend_irecv":
        says = "what the peers send is not used: zeros stand in its place"
        yield Cause.OWN_DATA_ONLY, says, Alteration(site, "zeros", lambda parts, _: [parts[0], 0 * parts[1]])
    elif site.name == "broadcast":
        says = "its receivers keep what they had"
        yield Cause.OWN_DATA_ONLY, says, Alteration(site, "kept", lambda parts, _: [parts[0], parts[0]])
    else:
        yield from _layouts(site)
        if not site.op:
            yield from _moves(site)


def _reductions(site: Site) -> Iterator[tuple[Cause, str, Alteration]]:
    right = _OPS[site.op]
    for op, name in _OPS.items():
        if op != site.op:
            yield Cause.REDUCTION_OP, f"it takes the {name} instead of the {right}", Alteration(site, op, op=op)
    own_alone = Alteration(site, "own", lambda parts, own: [parts[own]])
    yield Cause.OWN_DATA_ONLY, "it is left out, so a rank goes on with its own part", own_alone
    if site.op != "SUM":
        return
    size = site.group_size
    for words, factor in (("1/W", 1 / size), ("W", float(size))):
        yield (
            Cause.SCALED,
            f"its sum is the right one times {words}, W = {size} the size of the group",
            Alteration(site, factor, partial(_times, factor)),
        )
    yield Cause.MISSING_RANK, "the own part of <rank> is missing in its sum", Alteration(site, "not own", _without_own)
    yield Cause.DOUBLED_RANK, "the own part of <rank> is in its sum twice", Alteration(site, "own twice", _own_twice)
    for s in range(size):
        says = f"the part of rank {s} of the group is missing in its sum"
        yield Cause.MISSING_RANK, says, Alteration(site, ("missing", s), partial(_without, s))
    for s in range(size):
        says = f"the part of rank {s} of the group is in its sum twice"
        yield Cause.DOUBLED_RANK, says, Alteration(site, ("twice", s), partial(_twice, s))


def _moves(site: Site) -> Iterator[tuple[Cause, str, Alteration]]:
    size = site.group_size
    yield (
        Cause.OWN_DATA_ONLY,
        "the rank's own part stands in the place of every peer's",
        Alteration(site, "own everywhere", lambda parts, own: [parts[own]] * len(parts)),
    )
    yield (
        Cause.OWN_DATA_ONLY,
        "only the rank's own part is there, zeros stand in place of its peers'",
        Alteration(site, "own alone", lambda parts, own: [p if s == own else 0 * p for s, p in enumerate(parts)]),
    )
    for s in range(size):
        says = f"the part of rank {s} of the group is missing, as if it were zero"
        yield Cause.MISSING_RANK, says, Alteration(site, ("zero", s), partial(_zeroed, s))
    yield from _orders(site)


def _orders(site: Site) -> Iterator[tuple[Cause, str, Alteration]]:
    size = site.group_size
    arrived = "the parts stand in order of arrival, the own one first"
    yield Cause.PERMUTED_RANKS, arrived, Alteration(site, "arrival", lambda parts, own: parts[own:] + parts[:own])
    reverse = "the parts stand in reversed order of ranks"
    yield Cause.PERMUTED_RANKS, reverse, Alteration(site, "reversed", lambda parts, _: parts[::-1])
    for k in range(1, size if size <= 8 else 2):
        says = f"the parts are rotated by {k}: that of rank {k} stands where rank 0's belongs"
        order = tuple((s + k) % size for s in range(size))
        yield Cause.PERMUTED_RANKS, says, Alteration(site, ("order", order), partial(_ordered, order))
        says = f"a rank gets the part that is meant for the one {k} place{'s' if k > 1 else ''} on"
        yield Cause.PERMUTED_RANKS, says, Alteration(site, ("sends", order), sends=partial(_reordered, order))
    for a, b in list(combinations(range(size), 2))[:_MAX_PAIRS]:
        order = tuple(b if s == a else a if s == b else s for s in range(size))
        says = f"the parts of ranks {a} and {b} are swapped"
        yield Cause.PERMUTED_RANKS, says, Alteration(site, ("order", order), partial(_ordered, order))


def _layouts(site: Site) -> Iterator[tuple[Cause, str, Alteration]]:
    """Parts cut or joined along another dimension: a transpose too few or too many."""
    if site.name in ("reduce_scatter_tensor", "all_to_all_single", "scatter"):
        for dim in range(_MAX_DIMS):
            what = f"rows of dimension {dim - 1}" if dim else "elements"
            says = f"the {what} to be sent are dealt out one by one instead of block by block"
            yield Cause.SHARDING_AXIS, says, Alteration(site, ("dealt", dim), sends=partial(_dealt, dim))
        for dim in range(1, _MAX_DIMS):
            says = f"the data to be sent are cut along dimension {dim} instead of dimension 0"
            yield Cause.SHARDING_AXIS, says, Alteration(site, ("cut", dim), sends=partial(_cut, dim))
    if not site.op:
        for dim in range(_MAX_DIMS):
            right = f"where dimension {dim} is right" if dim else "where they have to be interleaved"
            says = f"the received parts are joined along dimension 0, {right}: a transpose is missing"
            change = partial(_dealt, dim)
            yield Cause.SHARDING_AXIS, says, Alteration(site, ("as they lie", dim), partial(_received_as, change))
        for dim in range(_MAX_DIMS):
            along = f"along dimension {dim}" if dim else "element by element"
            says = f"the received parts are joined {along}, where dimension 0 is right"
            change = partial(_interleaved, dim)
            yield Cause.SHARDING_AXIS, says, Alteration(site, ("joined", dim), partial(_received_as, change))


def _received_as(change: Callable[[Parts], Parts], parts: Parts, own: int) -> Parts:
    return change(parts)


def _whole(dim: int, parts: Parts) -> tuple[torch.Tensor, int, int]:
    """All parts, and how many elements there are before and from a dimension on (0: of single elements)."""
    shape = parts[0].shape
    if dim > len(shape) or any(part.shape != shape for part in parts):
        raise ValueError(f"no equal parts of {dim} dimensions")
    before = math.prod(shape[:dim]) if dim else shape.numel()
    return torch.stack(parts), before, shape.numel() // before


def _dealt(dim: int, parts: Parts) -> Parts:
    """Part d has every W-th row from d on; also what a transpose turns into parts as they lie in memory."""
    whole, before, behind = _whole(dim, parts)
    return list(whole.reshape(before, len(parts), behind).transpose(0, 1).reshape(whole.shape))


def _interleaved(dim: int, parts: Parts) -> Parts:
    whole, before, behind = _whole(dim, parts)
    return list(whole.reshape(len(parts), before, behind).transpose(0, 1).reshape(whole.shape))


def _cut(dim: int, parts: Parts) -> Parts:
    pieces = torch.cat(parts).chunk(len(parts), dim=dim)
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def _times(factor: float, parts: Parts, own: int) -> Parts:
    return [factor * part for part in parts]


def _without(s: int, parts: Parts, own: int) -> Parts:
    return parts[:s] + parts[s + 1 :]


def _twice(s: int, parts: Parts, own: int) -> Parts:
    return [*parts, parts[s]]


def _without_own(parts: Parts, own: int) -> Parts:
    return _without(own, parts, own)


def _own_twice(parts: Parts, own: int) -> Parts:
    return _twice(own, parts, own)


def _zeroed(s: int, parts: Parts, own: int) -> Parts:
    return [0 * part if i == s else part for i, part in enumerate(parts)]


def _ordered(order: tuple[int, ...], parts: Parts, own: int) -> Parts:
    return [parts[s] for s in order]


def _reordered(order: tuple[int, ...], parts: Parts) -> Parts:
    return [parts[s] for s in order]
