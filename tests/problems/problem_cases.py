"""What the generic tests run over: every problem, world size and dtype, and the trials of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from pkb.problems import _check
from pkb.problems._check import (
    Accepts,
    Check,
    Comparison,
    Every,
    ExactFloats,
    Expected,
    Leaf,
    Outcome,
    Unspecified,
    compare,
    expected_dtype,
)
from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._find import read_problem
from pkb.problems._spec import FOLDER, Dtype, Judgeside, Problem, Size, torch_dtype
from pkb.problems._tree import same_bits, tensors

SECRET = b"tests of problems"
WORLD_SIZES = (1, 2, 4, 8)
SLOW_WORLD_SIZE = 8
FIRST_DTYPE_DRAWS = range(4)
OTHER_DTYPE_DRAWS = range(4, 7)
"""Other draws in the second dtype: together they see every variant that changes with the draw."""


@dataclass(frozen=True)
class Case:
    """A problem at one world size in one dtype."""

    problem_id: str
    world_size: int
    dtype: Dtype

    def __str__(self) -> str:
        return f"{self.problem_id}-w{self.world_size}-{self.dtype}"

    @property
    def problem(self) -> Problem:
        return problem_of(self.problem_id)

    @property
    def is_slow(self) -> bool:
        return self.world_size == SLOW_WORLD_SIZE

    @property
    def draws(self) -> range:
        return FIRST_DTYPE_DRAWS if self.dtype == self.problem.dtypes[0] else OTHER_DTYPE_DRAWS


@dataclass(frozen=True)
class Trial:
    """One draw of a case at one size."""

    case: Case
    size_name: str
    index: int
    exact: bool = False

    def __str__(self) -> str:
        return f"{self.case} {self.size_name} draw {self.index}{' exact' if self.exact else ''}"

    @property
    def size(self) -> Size:
        return self.case.problem.sizes[self.size_name]

    @property
    def check(self) -> Check:
        return ExactFloats(self.case.problem.check) if self.exact else self.case.problem.check

    def another(self) -> Trial:
        """The next draw at the same size."""
        return replace(self, index=self.index + 1)


@cache
def problem_of(problem_id: str) -> Problem:
    """The problem of a folder."""
    return read_problem(FOLDER / problem_id)


@cache
def judgeside(problem_id: str) -> Judgeside:
    """The functions of a problem's problem.py."""
    return problem_of(problem_id).load()


def all_cases(names: Sequence[str], kind: str) -> list[Case]:
    """Cases of problems: `case` all, `input_case` in one dtype, `peer_case` in one dtype on several ranks.

    By world size first, so that the ranks form few process groups.
    """
    return [
        Case(name, world_size, dtype)
        for world_size in WORLD_SIZES
        for name in names
        if world_size in problem_of(name).world_sizes and (world_size > 1 or kind != "peer_case")
        for dtype in problem_of(name).dtypes[: None if kind == "case" else 1]
    ]


def trials(case: Case) -> list[Trial]:
    """Several draws at each tiny size; an exact one besides where the problem has such trials."""
    found = []
    for name in case.problem.sizes_named("tiny"):
        if not case.problem.sizes[name].get("exact", False):
            found += [Trial(case, name, index) for index in case.draws]
        if case.problem.exact_trial:
            found.append(Trial(case, name, case.draws[0], exact=True))
    return found


def draw_inputs(trial: Trial) -> list[tuple[Any, ...]]:
    """Arguments of every rank, drawn anew."""
    case = trial.case
    drawn = []
    for rank in range(case.world_size):
        seeds = derive_seeds(SECRET, problem=case.problem_id, size=trial.size_name, index=trial.index, rank=rank)
        draw = make_draw(
            seeds,
            rank=rank,
            world_size=case.world_size,
            dtype=case.dtype,
            index=trial.index,
            exact=trial.exact,
            device="cpu",
        )
        drawn.append(judgeside(case.problem_id).inputs(trial.size, draw))
    return drawn


@cache
def inputs_of(trial: Trial) -> list[tuple[Any, ...]]:
    """Arguments of every rank; nobody may write to them."""
    return draw_inputs(trial)


@cache
def expected_of(trial: Trial) -> list[Any]:
    """The oracle's answer for every rank."""
    return oracle(trial, inputs_of(trial))


def oracle(trial: Trial, inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[Any]:
    """The oracle's answer for inputs other than the trial's."""
    return judgeside(trial.case.problem_id).oracle(inputs_of_all_ranks, trial.case.world_size)


def oracle_if_valid(trial: Trial, inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[Any] | None:
    """The same; None where changed inputs are no valid ones, such as offsets that fit no shape."""
    try:
        return oracle(trial, inputs_of_all_ranks)
    except (RuntimeError, ValueError, IndexError):
        return None


def rounded(expected: Any, dtype: Dtype) -> Any:
    """The truth as a solution would return it; zeros where only shape and dtype are judged."""

    def round_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Unspecified):
            return torch.zeros(leaf.shape, dtype=leaf.dtype or torch_dtype(dtype))
        if isinstance(leaf, (Expected, torch.Tensor)):
            value = leaf.value if isinstance(leaf, Expected) else leaf
            return value.to(expected_dtype(leaf, dtype))
        return leaf

    return map_leaves(expected, round_leaf)


def right_outputs(trial: Trial) -> list[Any]:
    """What a perfect solution returns on every rank."""
    return [rounded(expected, trial.case.dtype) for expected in expected_of(trial)]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists, dicts and outcomes with every leaf changed."""
    if isinstance(value, Outcome):
        return Outcome(map_leaves(value.result, change), map_leaves(dict(value.arguments), change))
    if type(value) in (tuple, list):
        return type(value)([map_leaves(item, change) for item in value])
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """All leaves of tuples, lists, dicts and outcomes."""
    if isinstance(value, Outcome):
        yield from leaves([value.result, dict(value.arguments)])
    elif type(value) in (tuple, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def is_number(tensor: torch.Tensor) -> bool:
    """Real or complex numbers rather than counts, indices or flags."""
    return tensor.is_floating_point() or tensor.is_complex()


def truths(expected: Any) -> list[torch.Tensor]:
    """The floating truths of an answer of the oracle."""
    values = [leaf.value if isinstance(leaf, Expected) else leaf for leaf in leaves(expected)]
    return [value for value in values if isinstance(value, torch.Tensor) and is_number(value)]


def compare_ranks(trial: Trial, outputs: list[Any]) -> list[Comparison]:
    """What the judge finds on every rank."""
    agree = trial.case.problem.agree
    return _check.compare_ranks(trial.check, outputs, expected_of(trial), trial.case.dtype, agree=agree)


def is_refused(trial: Trial, outputs: list[Any]) -> bool:
    """Something is found on some rank."""
    return any(not comparison.passed for comparison in compare_ranks(trial, outputs))


def is_close(got: Any, want: Any) -> bool:
    """Two answers of the oracle are the same truth, up to the last digits of float64."""
    one, other = list(leaves(got)), list(leaves(want))
    return len(one) == len(other) and all(map(_is_close_leaf, one, other))


def _is_close_leaf(one: Any, other: Any) -> bool:
    one, other = (leaf.value if isinstance(leaf, Expected) else leaf for leaf in (one, other))
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    wide = torch.complex128 if other.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    scale = float(other.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


def has_same_bits(one: Any, other: Any) -> bool:
    """Two sets of arguments have the same bits in all tensors, also those of modules, and otherwise equal leaves."""
    return has_same_tensors(one, other) and _plain(one) == _plain(other)


def has_same_tensors(one: Any, other: Any) -> bool:
    """The same for tensors alone."""
    a, b = list(tensors(one)), list(tensors(other))
    forms = [[(t.dtype, t.shape) for t in found] for found in (a, b)]
    return forms[0] == forms[1] and all(
        bool(same_bits(x.contiguous(), y.contiguous())) for x, y in zip(a, b, strict=True)
    )


def _plain(value: Any) -> list[Any]:
    return [type(leaf) if isinstance(leaf, (torch.Tensor, torch.nn.Module)) else leaf for leaf in leaves(value)]


def is_right(trial: Trial, outputs: list[Any]) -> bool:
    """The outputs are what a perfect solution returns, up to values that are unspecified or of a free choice."""
    dtype = trial.case.dtype

    def as_returned(leaf: Any) -> Any:
        if not isinstance(leaf, Expected):
            return leaf if isinstance(leaf, Unspecified) else rounded(leaf, dtype)
        free = leaf.check if _has_choice(leaf.check) else None
        return Expected(rounded(leaf, dtype), dtype=expected_dtype(leaf, dtype), check=free, skip=leaf.skip)

    wanted = [map_leaves(want, as_returned) for want in expected_of(trial)]
    return all(compare(_SameValues(), g, w, dtype).passed for g, w in zip(outputs, wanted, strict=True))


def _has_choice(check: Check | None) -> bool:
    if isinstance(check, Every):
        return any(map(_has_choice, check.checks))
    return isinstance(check, Accepts)


@dataclass(frozen=True)
class _SameValues:
    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        want = want.to(got.dtype)
        if got.dtype.itemsize == 1 and got.is_floating_point():
            got, want = got.float(), want.float()
        same = (got == want) | ((got != got) & (want != want))
        return Leaf(None if bool(same.all()) else ~same)

    def at(self, index: Any) -> _SameValues:
        return self
