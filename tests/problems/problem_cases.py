"""What the generic tests run over: every problem, world size and dtype, and the trials of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from pkb.problems._check import Check, Comparison, Exact, ExactValues, Expected, Leaf, Unspecified, compare
from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._find import list_problems
from pkb.problems._spec import Dtype, Judgeside, Problem, Size, torch_dtype

SECRET = b"tests of problems"
WORLD_SIZES = (1, 2, 4)
DTYPES: tuple[Dtype, ...] = ("bf16", "fp32")
NUM_DRAWS = 4

PROBLEMS = {problem.id: problem for problem in list_problems()}


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
        return PROBLEMS[self.problem_id]


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
        return ExactValues() if self.exact else self.case.problem.check

    def another(self) -> Trial:
        """The next draw at the same size."""
        return replace(self, index=self.index + 1)


# By world size first, so that the ranks form few process groups.
CASES = [
    Case(name, world_size, dtype)
    for world_size in WORLD_SIZES
    for name in PROBLEMS
    if world_size in PROBLEMS[name].world_sizes
    for dtype in DTYPES
]


def trials(case: Case) -> list[Trial]:
    """Several draws at each tiny size; an exact one besides where the problem has such trials."""
    found = []
    for name in case.problem.sizes_named("tiny"):
        if not case.problem.sizes[name].get("exact", False):
            found += [Trial(case, name, index) for index in range(NUM_DRAWS)]
        if case.problem.exact_trial:
            found.append(Trial(case, name, 0, exact=True))
    return found


@cache
def judgeside(problem_id: str) -> Judgeside:
    """The functions of a problem's problem.py."""
    return PROBLEMS[problem_id].load()


def draw_inputs(trial: Trial) -> list[tuple[Any, ...]]:
    """Arguments of every rank, drawn anew."""
    case = trial.case
    drawn = []
    for rank in range(case.world_size):
        seeds = derive_seeds(
            SECRET, problem=case.problem_id, size=trial.size_name, index=trial.index, rank=rank
        )
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


def rounded(expected: Any, dtype: Dtype) -> Any:
    """The truth as a solution would return it; zeros where only shape and dtype are judged."""

    def round_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Expected):
            return leaf.value.to(leaf.dtype)
        if isinstance(leaf, Unspecified):
            return torch.zeros(leaf.shape, dtype=leaf.dtype or torch_dtype(dtype))
        if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
            return leaf.to(torch_dtype(dtype))
        return leaf

    return map_leaves(expected, round_leaf)


def right_outputs(trial: Trial) -> list[Any]:
    """What a perfect solution returns on every rank."""
    return [rounded(expected, trial.case.dtype) for expected in expected_of(trial)]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts with every leaf changed."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """All leaves of tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def float_tensors(value: Any) -> list[torch.Tensor]:
    """All floating tensors among the leaves."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def compare_ranks(trial: Trial, outputs: list[Any]) -> list[Comparison]:
    """What the judge finds on every rank."""
    pairs = zip(outputs, expected_of(trial), strict=True)
    return [compare(trial.check, got, want, trial.case.dtype) for got, want in pairs]


def is_refused(trial: Trial, outputs: list[Any]) -> bool:
    """Something is found on some rank."""
    return any(not comparison.passed for comparison in compare_ranks(trial, outputs))


def is_same(got: Any, want: Any, dtype: Dtype) -> bool:
    """Every value that `want` specifies is equal, NaN to NaN and zeros of either sign."""
    return compare(_SameValues(), got, want, dtype).passed


def is_close(got: Any, want: Any) -> bool:
    """Two answers of the oracle are the same truth, up to the last digits of float64."""
    pairs = list(zip(leaves(got), leaves(want), strict=True))
    return all(_is_close_leaf(one, other) for one, other in pairs)


def _is_close_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Expected) and isinstance(other, Expected):
        one, other = one.value, other.value
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    scale = float(other.double().nan_to_num().abs().max()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


def has_same_bits(got: Any, want: Any, dtype: Dtype) -> bool:
    """Every leaf is bitwise equal."""
    return compare(Exact(), got, want, dtype).passed


def is_right(trial: Trial, outputs: list[Any]) -> bool:
    """The outputs are what a perfect solution returns, up to values that are unspecified."""

    def keep_unspecified(want: Any) -> Any:
        return map_leaves(want, lambda leaf: leaf if isinstance(leaf, Unspecified) else rounded(leaf, dtype))

    dtype = trial.case.dtype
    wanted = [keep_unspecified(want) for want in expected_of(trial)]
    return all(is_same(got, want, dtype) for got, want in zip(outputs, wanted, strict=True))


@dataclass(frozen=True)
class _SameValues:
    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        same = (got == want) | ((got != got) & (want != want))
        return Leaf(None if bool(same.all()) else ~same)
