"""Plausible wrong answers: what ranks would return if a certain mistake had been made.

Each hypothesis asks the oracle, or expected results that are known already; the cheap ones come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations

import torch

from pkb.judging.evidence import Answer, flatten, name_ranks
from pkb.judging.mistakes import mistakes_at
from pkb.judging.replay import Alteration
from pkb.judging.scene import Scene, is_number
from pkb.records.verdict import Cause


@dataclass(frozen=True)
class Hypothesis:
    """One mistake and what it would lead to."""

    cause: Cause
    says: str
    """What is wrong, a clause; `<rank>` stands for the rank or ranks that it is found on."""
    answer: Callable[[Scene, int], Answer | None]
    """What a rank would return; None when the mistake cannot be made there."""
    residual: float = 0.5
    """Largest rest of the error, as a share of it, that still counts as explained."""
    coverage: float = 0.0
    """Smallest share of the elements concerned that have to follow it."""
    min_elems: int = 1
    """Fewest wrong elements on which it may be claimed."""
    every_call: bool = False
    """To be claimed only if later calls bear it out."""


def families(scene: Scene, failing: Sequence[int]) -> Iterator[list[Hypothesis]]:
    """Hypotheses in groups of one kind, in the order in which they are to be tried.

    Args:
        scene: the call to be explained.
        failing: ranks with a wrong result.
    """
    yield _whole_results(scene)
    parts = [hypothesis for _, hypothesis in missing(scene)]
    # With two ranks, own data alone and the peer's missing can be the same: it is the former if all do it.
    if scene.world_size > 2 or len(failing) == scene.world_size:
        yield _own_data_only(scene)
        yield parts
    else:
        yield parts
        yield _own_data_only(scene)
    yield _doubled(scene)
    yield _from_other_call(scene, scene.alike_offsets(-1)[:1])
    yield _from_other_call(scene, scene.alike_offsets(1)[:1])
    yield _accumulated(scene)
    yield _permuted(scene)
    yield known_mistakes(scene)
    if scene.world_size > 1:
        yield [
            Hypothesis(
                Cause.MISSING_RANK,
                f"rank {s}'s data are left out of a maximum or of a sum of exponentials",
                partial(_left_out, s),
            )
            for s in range(scene.world_size)
        ]
    yield in_collectives(scene)
    # Double buffers delay the same mistakes by one more call.
    yield _from_other_call(scene, scene.alike_offsets(-1)[1:2])
    yield _from_other_call(scene, scene.alike_offsets(1)[1:2])


def scalings(scene: Scene) -> list[Hypothesis]:
    """The expected result times one of the usual constants."""
    size = float(scene.world_size)
    usual = [("-1", -1.0), ("2", 2.0), ("1/2", 0.5), ("sqrt(2)", 2.0**0.5), ("1/sqrt(2)", 0.5**0.5)]
    if size > 1:
        usual += [("W", size), ("1/W", 1 / size), ("sqrt(W)", size**0.5), ("1/sqrt(W)", size**-0.5)]
    names: dict[float, list[str]] = {}
    for name, factor in usual:
        names.setdefault(round(factor, 9), []).append(name)
    found = []
    for factor, same in names.items():
        words = " = ".join(same) + (f", W = {scene.world_size} the world size" if "W" in "".join(same) else "")
        says = f"the result is the expected one times {words}"
        found.append(Hypothesis(Cause.SCALED, says, partial(_scaled, factor)))
    return found


def measured_scaling(scene: Scene, factor: float | None) -> list[Hypothesis]:
    """The expected result times a constant that was measured on the results, if there is one."""
    if factor is None:
        return []
    # Any noisy result has a best factor: it explains an error only if little is left, on many elements.
    ratio = Fraction(factor).limit_denominator(16)
    is_ratio = abs(float(ratio) - factor) < 1e-3 * abs(factor) and ratio.numerator <= 64
    says = f"the result is the expected one times {ratio if is_ratio else f'{factor:.4g}'}"
    answer = partial(_scaled, float(ratio) if is_ratio else factor)
    return [Hypothesis(Cause.SCALED, says, answer, residual=0.1, min_elems=16)]


def mixtures(scene: Scene, direction: int) -> list[tuple[tuple[int, ...], Hypothesis]]:
    """Sets of ranks whose data may come from the nearest like call in a direction, small sets first."""
    ranks = range(scene.world_size)
    # Sets of more ranks are too many to try beyond four.
    sizes = range(1, scene.world_size + 1) if scene.world_size <= 4 else (1,)
    subsets = [subset for size in sizes for subset in combinations(ranks, size)]
    if scene.world_size > 4:
        subsets += [tuple(r for r in ranks if r != own) for own in ranks]
    cause = Cause.STALE if direction < 0 else Cause.OVERWRITTEN
    return [
        (subset, Hypothesis(cause, _when(scene, offset), partial(_with_data_of, offset, subset, None)))
        for offset in scene.alike_offsets(direction)[:1]
        for subset in subsets
    ]


def all_of(scene: Scene, direction: int, ranks: Sequence[int]) -> Hypothesis:
    """The data of all the given ranks come from the nearest like call in a direction, which there has to be."""
    offset = scene.alike_offsets(direction)[0]
    says = f"the data of {name_ranks(ranks)} are those of {_when(scene, offset)}"
    cause = Cause.STALE if direction < 0 else Cause.OVERWRITTEN
    return Hypothesis(cause, says, partial(_with_data_of, offset, tuple(ranks), None))


def known_mistakes(scene: Scene) -> list[Hypothesis]:
    """The problem's own near misses."""
    return [
        Hypothesis(Cause.NEAR_MISS, f"the result is a known wrong answer: {name}", partial(_near_miss, name))
        for name in scene.near_misses()
    ]


def in_collectives(scene: Scene) -> list[Hypothesis]:
    """Mistakes in one collective of the reference."""
    found = []
    of_any_rank = dict.fromkeys(site for sites in scene.sites for site in sites)
    for site in of_any_rank:
        num_alike = len({other.number for other in of_any_rank if other.name == site.name})
        which = f"the {site.name} (the {_ordinal(site.number + 1)} collective)" if num_alike > 1 else f"the {site.name}"
        for cause, says, altered in mistakes_at(site):
            found.append(Hypothesis(cause, f"as if in {which} of the reference {says}", partial(_replayed, altered)))
    return found


def _ordinal(number: int) -> str:
    return f"{number}{ ({1: 'st', 2: 'nd', 3: 'rd'}.get(number if number < 20 else number % 10, 'th')) }"


def _whole_results(scene: Scene) -> list[Hypothesis]:
    found = []
    for distance in range(1, scene.at + 1):
        says = f"the answer of the previous call (call {scene.at - 1}) is returned again"
        if distance > 1:
            says = f"the answer of call {scene.at - distance}, {distance} calls earlier, is returned again"
        found.append(Hypothesis(Cause.STALE, says, partial(_other_call, -distance)))
    if scene.at > 0:
        says = "the answer of the first call is returned again in every later call, as if it had been kept"
        found.insert(0, Hypothesis(Cause.STALE, says, _first_call, every_call=True))
    for distance in range(1, len(scene.calls) - scene.at):
        says = f"the returned tensor was overwritten by the next call (call {scene.at + 1})"
        if distance > 1:
            says = f"the returned tensor was overwritten by call {scene.at + distance}, {distance} calls later"
        found.append(Hypothesis(Cause.OVERWRITTEN, says, partial(_other_call, distance)))
    for s in range(scene.world_size):
        says = f"<rank> returned what rank {s} should return"
        found.append(Hypothesis(Cause.PERMUTED_RANKS, says, partial(_of_rank, s)))
    return found


def _own_data_only(scene: Scene) -> list[Hypothesis]:
    answers: list[tuple[str, Callable[[Scene, int], Answer | None]]] = [
        ("the rank's own input is returned as it was", partial(_own_input, leaf))
        for leaf in range(max(map(len, scene.leaves), default=0))
    ]
    if scene.world_size > 1:
        only = "only the rank's own data are in the result, as if"
        answers.append((f"{only} its peers held zeros", _peers_zero))
        for variant in scene.variants():
            answers.append((f"{only} every peer held a copy of them", partial(_peers_copy, variant)))
    return [Hypothesis(Cause.OWN_DATA_ONLY, says, answer) for says, answer in answers]


def missing(scene: Scene) -> list[tuple[int | None, Hypothesis]]:
    """One rank's data missing, with that rank; None is the rank itself that the result is of."""
    if scene.world_size == 1:
        return []
    found: list[tuple[int | None, Hypothesis]] = []
    for s in range(scene.world_size):
        says = f"the data of rank {s} are missing, as if they were zero"
        found.append((s, Hypothesis(Cause.MISSING_RANK, says, partial(_zeroed, s, None))))
    own = "the own part of <rank> is missing, as if it were zero"
    for leaf in scene.variants()[1:]:
        found.append((None, Hypothesis(Cause.MISSING_RANK, own, partial(_own_zeroed, leaf))))
    return found


def _doubled(scene: Scene) -> list[Hypothesis]:
    found = []
    for s in range(scene.world_size if scene.world_size > 1 else 0):
        says = f"the contribution of rank {s} is counted twice"
        found.append(Hypothesis(Cause.DOUBLED_RANK, says, partial(_added_again, s)))
        if scene.variants() == [None]:
            found.append(Hypothesis(Cause.DOUBLED_RANK, says, partial(_twice, s)))
    return found


def _from_other_call(scene: Scene, offsets: Sequence[int]) -> list[Hypothesis]:
    found = []
    for offset in offsets:
        when, cause = _when(scene, offset), Cause.STALE if offset < 0 else Cause.OVERWRITTEN
        for s in range(scene.world_size):
            says = f"the data of rank {s} are those of {when}"
            found.append(Hypothesis(cause, says, partial(_with_data_of, offset, (s,), None)))
        if scene.world_size > 2:
            says = f"the data of all peers are those of {when}"
            # A part of the peers is for `mixtures` to name.
            found.append(Hypothesis(cause, says, partial(_with_peers_data_of, offset), coverage=0.9))
        for leaf in scene.variants()[1:]:
            says = f"the own part of <rank> is that of {when}"
            found.append(Hypothesis(cause, says, partial(_with_own_data_of, offset, leaf)))
    return found


def _accumulated(scene: Scene) -> list[Hypothesis]:
    earlier = [offset for offset in range(-scene.at, 0) if scene.calls[scene.at + offset].size == scene.call.size]
    if not earlier:
        return []
    says = "the results of earlier calls are still in it: what it is added to was not cleared"
    return [Hypothesis(Cause.STALE, says, partial(_added_up, tuple(earlier)))]


def _added_up(offsets: tuple[int, ...], scene: Scene, rank: int) -> Answer | None:
    answers = [scene.want(rank, offset) for offset in (*offsets, 0)]
    total: dict[str, torch.Tensor] = {}
    for answer in answers:
        for path, value in (answer or {}).items():
            if path in total and total[path].shape != value.shape:
                return None
            total[path] = total[path] + value.double() if path in total else value.double()
    return total


def _when(scene: Scene, offset: int) -> str:
    """Names another call, and the mistake that makes its data appear in this one."""
    number, distance = scene.at + offset, abs(offset)
    if offset < 0:
        which = f"the previous call (call {number})" if distance == 1 else f"call {number}, {distance} calls earlier"
        return f"{which}: they were read before the new ones were there"
    which = f"the next call (call {number})" if distance == 1 else f"call {number}, {distance} calls later"
    return f"{which}: the buffer was overwritten while a slower rank still read it"


def _permuted(scene: Scene) -> list[Hypothesis]:
    found, size = [], scene.world_size
    for leaf in scene.variants():
        for k in range(1, size) if size > 2 else ():
            says = f"the data of all ranks are rotated by {k}: those of rank {k} stand where rank 0's belong"
            order = tuple((rank + k) % size for rank in range(size))
            found.append(Hypothesis(Cause.PERMUTED_RANKS, says, partial(_reordered, order, leaf)))
    for leaf in scene.variants():
        for a, b in combinations(range(size), 2):
            order = tuple(b if rank == a else a if rank == b else rank for rank in range(size))
            says = f"the data of ranks {a} and {b} are swapped"
            found.append(Hypothesis(Cause.PERMUTED_RANKS, says, partial(_reordered, order, leaf)))
    for a, b in ((a, b) for a in range(size) for b in range(size) if a != b and size <= 4):
        order = tuple(b if rank == a else rank for rank in range(size))
        says = f"the data of rank {b} stand where rank {a}'s belong as well"
        found.append(Hypothesis(Cause.PERMUTED_RANKS, says, partial(_reordered, order, None)))
    return found


def _other_call(offset: int, scene: Scene, rank: int) -> Answer | None:
    return scene.want(rank, offset)


def _first_call(scene: Scene, rank: int) -> Answer | None:
    first = next(at for at, call in enumerate(scene.calls) if call.size == scene.call.size)
    return scene.want(rank, first - scene.at) if first < scene.at else None


def _of_rank(s: int, scene: Scene, rank: int) -> Answer | None:
    return scene.want(s) if s != rank else None


def _own_input(leaf: int, scene: Scene, rank: int) -> Answer | None:
    want, leaves = scene.want(rank), scene.leaves[rank]
    if want is None or set(want) != {"result"} or leaf >= len(leaves):
        return None
    own = flatten(leaves[leaf])["result"]
    return {"result": own.reshape(want["result"].shape)} if own.numel() == want["result"].numel() else None


def _scaled(factor: float, scene: Scene, rank: int) -> Answer | None:
    want = scene.want(rank)
    return None if want is None else {path: truth.double() * factor for path, truth in want.items()}


def _replayed(altered: Alteration, scene: Scene, rank: int) -> Answer | None:
    return _pick(scene.replay(altered), rank)


def _near_miss(name: str, scene: Scene, rank: int) -> Answer | None:
    results = scene.near_misses().get(name)
    return None if results is None else flatten(results[rank])


def _peers_zero(scene: Scene, rank: int) -> Answer | None:
    return _pick(scene.oracle(("peers zero", rank), lambda r, _, t: t if r == rank else _blank(t, 0.0)), rank)


def _peers_copy(leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    def change(r: int, i: int, tensor: torch.Tensor) -> torch.Tensor:
        return _instead(tensor, scene.leaves[rank], i) if leaf in (None, i) else tensor

    return _pick(scene.oracle(("peers copy", rank, leaf), change), rank)


def _zeroed(s: int, leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    def change(r: int, i: int, tensor: torch.Tensor) -> torch.Tensor:
        return _blank(tensor, 0.0) if r == s and leaf in (None, i) else tensor

    return _pick(scene.oracle(("zeroed", s, leaf), change), rank)


def _own_zeroed(leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    return _zeroed(rank, leaf, scene, rank)


def _left_out(s: int, scene: Scene, rank: int) -> Answer | None:
    lowest = float("-inf")
    return _pick(scene.oracle(("left out", s), lambda r, _, t: _blank(t, lowest) if r == s else t), rank)


def _added_again(s: int, scene: Scene, rank: int) -> Answer | None:
    want, without = scene.want(rank), _zeroed(s, None, scene, rank)
    if want is None or without is None or set(want) != set(without):
        return None
    # Without a rank's data the oracle may route other rows, and so return other shapes.
    if any(truth.shape != without[path].shape for path, truth in want.items()):
        return None
    return {path: 2 * truth.double() - without[path].double() for path, truth in want.items()}


def _twice(s: int, scene: Scene, rank: int) -> Answer | None:
    def change(r: int, _: int, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + tensor if r == s and is_number(tensor) else tensor

    return _pick(scene.oracle(("twice", s), change), rank)


def _with_data_of(offset: int, ranks: tuple[int, ...], leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    other = scene.alike(offset)
    if other is None:
        return None

    def change(r: int, i: int, tensor: torch.Tensor) -> torch.Tensor:
        return other[r][i] if r in ranks and leaf in (None, i) else tensor

    return _pick(scene.oracle(("other call", offset, ranks, leaf), change), rank)


def _with_peers_data_of(offset: int, scene: Scene, rank: int) -> Answer | None:
    peers = tuple(r for r in range(scene.world_size) if r != rank)
    return _with_data_of(offset, peers, None, scene, rank)


def _with_own_data_of(offset: int, leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    return _with_data_of(offset, (rank,), leaf, scene, rank)


def _reordered(order: tuple[int, ...], leaf: int | None, scene: Scene, rank: int) -> Answer | None:
    def change(r: int, i: int, tensor: torch.Tensor) -> torch.Tensor:
        return _instead(tensor, scene.leaves[order[r]], i) if leaf in (None, i) else tensor

    return _pick(scene.oracle(("reordered", order, leaf), change), rank)


def _pick(results: list[dict[str, torch.Tensor]] | None, rank: int) -> Answer | None:
    return None if results is None else results[rank]


def _instead(tensor: torch.Tensor, leaves: list[torch.Tensor], leaf: int) -> torch.Tensor:
    """Another rank's tensor in place of a rank's, which only makes sense in the same shape."""
    if leaf >= len(leaves) or leaves[leaf].shape != tensor.shape:
        raise ValueError("ranks hold tensors of different shapes")
    return leaves[leaf]


def _blank(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A tensor of one value; integers stay, since counts and indices have to fit."""
    return torch.full_like(tensor, value) if is_number(tensor) else tensor
