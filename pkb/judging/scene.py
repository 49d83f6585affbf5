"""One call within its trial, and what the oracle says when its inputs are changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pkb.judging.evidence import Answer, flatten
from pkb.judging.replay import Alteration, Site, replay, trace
from pkb.problems._spec import Judgeside, Problem
from pkb.problems._tree import flat_bytes, map_tensors, tensors

MAX_ORACLE_CALLS = 512
_MAX_REPLAYED_BYTES = 64 * 1024**2
"""The reference is replayed on inputs of at most so many bytes, all ranks together."""
MAX_SECONDS = 10.0
"""No further oracle call begins after this time: an oracle may take seconds at a large size."""

_MAX_LEAVES = 3
"""How many tensors of a rank are also changed one by one."""


@dataclass(frozen=True)
class Call:
    """One call of the candidate, all ranks, in the order it was made within its trial."""

    size: str
    index: int
    """Index of the draw."""
    exact: bool
    inputs: list[tuple[Any, ...]]
    """Arguments of all ranks: tensors, numbers, `Group`, modules, and lists of these."""
    want: list[Any]
    """What the oracle expects of all ranks."""
    got: list[Any]
    """What all ranks returned: tensors, numbers, None, containers, `Outcome`, `Foreign`."""


class Budget:
    """Oracle calls, replays among them, and seconds that one explanation may take."""

    def __init__(self) -> None:
        self._calls_left = MAX_ORACLE_CALLS
        self._end = time.monotonic() + MAX_SECONDS
        self.was_spent = False
        """An oracle call was refused."""

    def spend(self) -> bool:
        """Take one oracle call; False when none is left."""
        if self._calls_left == 0 or time.monotonic() > self._end:
            self.was_spent = True
            return False
        self._calls_left -= 1
        return True


Change = Callable[[int, int, torch.Tensor], torch.Tensor]
"""`change(rank, leaf, tensor)`: what stands in place of a rank's tensor."""


class Scene:
    """One call within its trial, and what the oracle says when its inputs are changed."""

    def __init__(self, problem: Problem, code: Judgeside, calls: Sequence[Call], at: int, budget: Budget) -> None:
        self.calls, self.at, self.call = calls, at, calls[at]
        self.world_size = len(self.call.inputs)
        self.leaves = [_tensors(arguments) for arguments in self.call.inputs]
        self.moves = self._which_move()
        """For each tensor of a rank, by position: it holds numbers of its own, that other ranks may need."""
        self._problem, self._code, self._budget = problem, code, budget
        self._known: dict[Hashable, list[dict[str, torch.Tensor]] | None] = {}
        self._near_misses: dict[str, list[Any]] | None = None

    def want(self, rank: int, offset: int = 0) -> Answer | None:
        """Expected result of a rank in this call, or in one that many calls later (earlier if negative)."""
        other = self.at + offset
        return flatten(self.calls[other].want[rank]) if 0 <= other < len(self.calls) else None

    def oracle(self, key: Hashable, change: Change) -> list[dict[str, torch.Tensor]] | None:
        """Results of all ranks on changed inputs; None when there are none. `key` names the change."""
        if key not in self._known:
            self._known[key] = self._evaluate(change) if self._budget.spend() else None
        return self._known[key]

    @cached_property
    def sites(self) -> list[list[Site]]:
        """Collectives of each rank in the problem's reference; none where it cannot be replayed."""
        nothing: list[list[Site]] = [[] for _ in range(self.world_size)]
        num_bytes = sum(t.numel() * t.element_size() for arguments in self.call.inputs for t in tensors(arguments))
        if self.world_size == 1 or num_bytes > _MAX_REPLAYED_BYTES or not self._budget.spend():
            return nothing
        found = trace(self._problem, self.call.inputs)
        if found is None or not all(map(_about_equal, map(flatten, found[0]), map(flatten, self.call.want))):
            return nothing
        return found[1]

    def replay(self, altered: Alteration) -> list[dict[str, torch.Tensor]] | None:
        """Results of all ranks of the reference with one collective altered; None when there are none."""
        key = ("replay", altered.site, altered.key)
        if key not in self._known:
            results = replay(self._problem, self.call.inputs, altered) if self._budget.spend() else None
            self._known[key] = None if results is None else [flatten(result) for result in results]
        return self._known[key]

    def near_misses(self) -> dict[str, list[Any]]:
        """The problem's own near misses by name."""
        if self._near_misses is None:
            self._near_misses = dict(self._code.near_misses(self.call.want, self.call.inputs))
        return self._near_misses

    def alike(self, offset: int) -> list[list[torch.Tensor]] | None:
        """Tensors of all ranks of another call, if they have the shapes of this one's."""
        other = self.at + offset
        if not 0 <= other < len(self.calls):
            return None
        leaves = [_tensors(arguments) for arguments in self.calls[other].inputs]
        return leaves if _shapes(leaves) == _shapes(self.leaves) else None

    def alike_offsets(self, direction: int) -> list[int]:
        """Offsets of the calls in a direction (1 or -1) whose inputs have the same shapes, nearest first."""
        remaining = self.at if direction < 0 else len(self.calls) - 1 - self.at
        offsets = (direction * distance for distance in range(1, remaining + 1))
        return [offset for offset in offsets if self.alike(offset) is not None]

    def variants(self) -> list[int | None]:
        """Which tensors of a rank to change: all (None), then each alone where there are several."""
        moving = [leaf for leaf, moves in enumerate(self.moves) if moves]
        return [None, *moving[:_MAX_LEAVES]] if len(moving) > 1 else [None]

    def _which_move(self) -> list[bool]:
        counts = {len(leaves) for leaves in self.leaves}
        if len(counts) != 1 or self.world_size == 1:
            return [True] * max(counts)
        by_leaf = zip(*self.leaves, strict=True)
        return [any(not _same(first, other) for other in rest) for first, *rest in by_leaf]

    def _evaluate(self, change: Change) -> list[dict[str, torch.Tensor]] | None:
        try:
            changed = [self._changed(rank, change) for rank in range(self.world_size)]
            return [flatten(result) for result in self._code.oracle(changed, self.world_size)]
        # Changed inputs may break what the oracle relies on, such as splits that fit the shapes.
        except (RuntimeError, ValueError, IndexError):
            return None

    def _changed(self, rank: int, change: Change) -> tuple[Any, ...]:
        new = iter([change(rank, i, t) if self.moves[i] else t for i, t in enumerate(self.leaves[rank])])
        is_movable = _movable(self.call.inputs[rank])
        arguments: tuple[Any, ...] = map_tensors(
            self.call.inputs[rank], lambda tensor: next(new) if is_movable(tensor) else tensor
        )
        return arguments


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds real or complex numbers rather than counts, indices or flags."""
    return tensor.is_floating_point() or tensor.is_complex()


def _about_equal(got: Answer, want: Answer) -> bool:
    """Equal but for the rounding of a low precision."""
    for path, truth in want.items():
        value = got.get(path)
        if value is None or value.shape != truth.shape:
            return False
        one, two = value.double().nan_to_num(), truth.double().nan_to_num()
        if float((one - two).norm()) > 0.05 * float(two.norm()) + 1e-6:
            return False
    return True


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every byte; unlike torch.equal this works in every dtype."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(flat_bytes(a), flat_bytes(b))


def _shapes(leaves: list[list[torch.Tensor]]) -> list[list[tuple[torch.Size, torch.dtype]]]:
    return [[(t.shape, t.dtype) for t in of_rank] for of_rank in leaves]


def _movable(arguments: Any) -> Callable[[torch.Tensor], bool]:
    """Which tensors can be data that ranks exchange: the floating ones, or all where there are none."""
    return is_number if any(map(is_number, tensors(arguments))) else lambda _: True


def _tensors(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    is_movable = _movable(arguments)
    return [tensor for tensor in tensors(arguments) if is_movable(tensor)]
