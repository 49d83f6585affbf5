"""How the values of one output are compared. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pkb.problems._numbers import bits, code, difference, finite_or_none, ratio, wide, wild
from pkb.problems._spec import Dtype

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Leaf:
    """Outcome of comparing one tensor's values."""

    bad: torch.Tensor | None
    """Wrong elements; None when the output passes."""
    detail: str = ""
    error: float | None = None
    tolerance: float | None = None


class Check(Protocol):
    """How the values of one output are compared; container, dtype and shape are compared before."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare values. `got` has the right dtype and shape; `want` is float64 or has got's dtype."""
        ...

    def at(self, index: Any) -> Check:
        """The check of `tensor[index]` taken alone.

        Raises:
            ValueError: this kind of check has no meaning for a part.
        """
        ...


class _Pointwise:
    """A check that is the same for every element, so for every part."""

    def at(self, index: Any) -> Any:
        return self


@dataclass(frozen=True)
class Exact(_Pointwise):
    """Every bit equal, so that -0.0 and NaN payloads count."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare integer views of both."""
        bad = bits(got) != bits(want.to(got.dtype))
        return _exact_leaf(bad.any(dim=-1) if got.is_complex() else bad)


@dataclass(frozen=True)
class ExactValues(_Pointwise):
    """Every value equal, zeros of either sign alike: the check of exact trials."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare as numbers."""
        if got.dtype == want.dtype and not (got.is_floating_point() or got.is_complex()):
            return _exact_leaf(got != want)
        return _exact_leaf(~(wide(got) == wide(want)))


@dataclass(frozen=True)
class ExactFloats:
    """Exact values where the truth is float64, another check elsewhere: what is judged in exact trials."""

    otherwise: Check

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare as numbers, unless several answers are right."""
        is_sum = _is_truth(want) and not isinstance(self.otherwise, Accepts)
        return ExactValues().values(got, want, dtype) if is_sum else self.otherwise.values(got, want, dtype)

    def at(self, index: Any) -> ExactFloats:
        """The same for the part."""
        return ExactFloats(self.otherwise.at(index))


@dataclass(frozen=True)
class Bound:
    """Largest error of a single element: rms * rms(want) + rel * |want| + floor."""

    rms: float = 0.0
    rel: float = 0.0
    floor: float = 0.0
    dtypes: tuple[Dtype, ...] = ("bf16", "fp32")
    """Working dtypes in which the bound is judged."""


ELEMENTS = Bound(rms=0.1, rel=0.02)
"""The usual bound on single elements: a stale tile disappears in the norm of a large result, not here."""


@dataclass(frozen=True)
class Blocks:
    """Largest ||error of a block|| / ||block||; a block of zeros must be exactly 0."""

    bf16: float | None = None
    fp32: float | None = None
    """None: blocks are not judged in that dtype."""
    over: tuple[int, ...] = (-1,)
    """Dimensions that one block extends over; the others tell blocks apart."""
    shape: tuple[int, ...] | None = None
    """View the output in this shape first, to tell blocks within a dimension apart."""

    def limit(self, dtype: Dtype) -> float | None:
        """The bound in a working dtype."""
        return self.bf16 if dtype == "bf16" else self.fp32


@dataclass(frozen=True)
class Relative:
    """||got - want|| / ||want|| at most the dtype's tolerance; optionally bounds per element and per block.

    Outputs that are integers or booleans have to be exact: ids and counts are never nearly right.
    """

    tolerance: Mapping[str, float] | None
    """None: only elements and blocks are judged."""
    elements: tuple[Bound, ...] = ()
    rows: Blocks | None = None

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare in float64; where `want` is not finite, `got` must be the same."""
        if not (want.is_floating_point() or want.is_complex()):
            return Exact().values(got, want, dtype)
        tolerance = None if self.tolerance is None else self.tolerance[dtype]
        bad = wild(got, want)
        if bad is not None:
            return Leaf(bad, _NONFINITE, None, tolerance)
        diff, truth = difference(got, want)
        error = ratio(float(diff.norm()), float(truth.norm()))
        for bad, detail in self._violations(diff, truth, error, dtype):
            return Leaf(bad, detail, finite_or_none(error), tolerance)
        return Leaf(None, "", error, tolerance)

    def at(self, index: Any) -> Relative:
        """The relative error of the part, or the bounds on its elements where there is no tolerance."""
        return Relative(self.tolerance, () if self.tolerance else self.elements)

    def _violations(
        self, diff: torch.Tensor, truth: torch.Tensor, error: float, dtype: Dtype
    ) -> Iterator[tuple[torch.Tensor, str]]:
        """Every bound that is broken, with the elements to show for it."""
        rms = float(truth.norm()) / math.sqrt(max(1, truth.numel()))
        if self.tolerance is not None and error > self.tolerance[dtype]:
            tolerance = self.tolerance[dtype]
            bad = diff > tolerance * (truth + rms)
            yield _or_all(bad, diff), f"relative error {error:.3g}, at most {tolerance:g} passes"
        for e in self.elements:
            bad = diff > e.rms * rms + e.rel * truth + e.floor
            if dtype in e.dtypes and bool(bad.any()):
                bound = f"{e.rms:g} rms + {e.rel:g} |expected| + {e.floor:g}"
                yield bad, f"{int(bad.sum())} elements are off by more than {bound}"
        limit = None if self.rows is None else self.rows.limit(dtype)
        if self.rows is not None and limit is not None and diff.dim() > 0:
            bad, num_blocks = _bad_blocks(diff, truth, self.rows, limit)
            if num_blocks:
                kind = "rows" if self.rows.over == (-1,) else "blocks"
                yield bad, f"{num_blocks} {kind} have a relative error above {limit:g}"


@dataclass(frozen=True)
class Step:
    """||got - want|| <= tolerance * ||want - old|| + u * ||want||, so that an answer that never updates fails."""

    old: torch.Tensor
    tolerance: Mapping[str, float]

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare in float64; u is the unit of rounding of the output."""
        tolerance = self.tolerance[dtype]
        bad = wild(got, want)
        if bad is not None:
            return Leaf(bad, _NONFINITE, None, tolerance)
        diff, truth = difference(got, want)
        step = float((wide(want) - wide(self.old)).norm())
        # Rounding of the parameters themselves is no error of the step.
        rounding = (2.0**-8 if dtype == "bf16" else 2.0**-23) * float(truth.norm())
        error = ratio(max(0.0, float(diff.norm()) - rounding), step)
        if error <= tolerance:
            return Leaf(None, "", error, tolerance)
        bad = diff > tolerance * step / math.sqrt(max(1, diff.numel()))
        detail = f"the error is {error:.3g} of the step from the old values, at most {tolerance:g} passes"
        return Leaf(_or_all(bad, diff), detail, finite_or_none(error), tolerance)

    def at(self, index: Any) -> Step:
        """The step of the part."""
        return Step(self.old[index], self.tolerance)


@dataclass(frozen=True)
class MostlyEqual(_Pointwise):
    """All but a small share of the elements equal in value; those that are not may be limited to neighbors."""

    share: float
    codes: int | None = None
    """How many representable values an element may be away; None: any number."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare with the truth as rounded to got's dtype."""
        rounded = want.to(got.dtype)
        if got.is_floating_point() and (bad := wild(got, rounded)) is not None:
            return Leaf(bad, _NONFINITE)
        distance = (code(got) - code(rounded)).abs()
        if self.codes is not None and bool((far := distance > self.codes).any()):
            return Leaf(far, f"{int(far.sum())} elements are more than {self.codes} representable values away")
        differs = distance > 0
        if differs.numel() and float(differs.double().mean()) > self.share:
            count = f"{int(differs.sum())} of {differs.numel()} elements"
            return Leaf(differs, f"{count} differ, at most a share of {self.share:g} may")
        return Leaf(None)


@dataclass(frozen=True)
class Accepts:
    """Several answers are right, and a function tells which elements are none of them."""

    wrong: Callable[[torch.Tensor], torch.Tensor]
    """`wrong(got)`: bool of got's shape. The expected value is one right answer."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Ask the function."""
        bad = self.wrong(got)
        if bad.shape != got.shape:
            raise ValueError(f"accepts(): a mask of shape {list(bad.shape)} for a result of {list(got.shape)}")
        if not bool(bad.any()):
            return Leaf(None)
        return Leaf(bad, f"{int(bad.sum())} of {bad.numel()} elements are none of the right answers")

    def at(self, index: Any) -> Check:
        """There is none."""
        raise ValueError("an output that accepts() judges has no regions; let the function look at them")


@dataclass(frozen=True)
class Every:
    """Several checks, all of which have to pass; error and tolerance are those of the first."""

    checks: tuple[Check, ...]

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """The first failure, or the first check's outcome."""
        leaves = [check.values(got, want, dtype) for check in self.checks]
        failed = next((leaf for leaf in leaves if leaf.bad is not None), None)
        first = leaves[0]
        return first if failed is None else Leaf(failed.bad, failed.detail, first.error, first.tolerance)

    def at(self, index: Any) -> Every:
        """Every check of the part."""
        return Every(tuple(check.at(index) for check in self.checks))


def exact() -> Exact:
    """Every bit equal."""
    return Exact()


def exact_values() -> ExactValues:
    """Every value equal; a zero may have either sign, NaN equals nothing."""
    return ExactValues()


def relative(
    *,
    bf16: float,
    fp32: float,
    elements: Bound | tuple[Bound, ...] | None = None,
    rows: float | Blocks | None = None,
) -> Relative:
    """Relative error in the Frobenius norm, with a tolerance for each working dtype.

    Args:
        bf16: tolerance where the working dtype is bf16.
        fp32: tolerance where it is fp32.
        elements: bounds on single elements.
        rows: bound on every row along the last dimension, in both dtypes; or `blocks(...)`.
    """
    by_row = blocks(bf16=rows, fp32=rows) if isinstance(rows, (int, float)) else rows
    return Relative({"bf16": bf16, "fp32": fp32}, _bounds(elements), by_row)


def within(*elements: Bound) -> Relative:
    """Bounds on single elements and nothing else; infinities have to be where they are expected."""
    return Relative(None, elements)


def blocks(
    *,
    bf16: float | None = None,
    fp32: float | None = None,
    over: int | tuple[int, ...] = -1,
    shape: tuple[int, ...] | None = None,
) -> Blocks:
    """A bound on the relative error of every block, for `rows` of `relative`; see `Blocks`."""
    return Blocks(bf16, fp32, (over,) if isinstance(over, int) else tuple(over), shape)


def step(old: torch.Tensor, *, bf16: float, fp32: float) -> Step:
    """Error relative to the step from `old` to the truth; for a leaf's own check."""
    return Step(old, {"bf16": bf16, "fp32": fp32})


def mostly_equal(*, share: float, codes: int | None = None) -> MostlyEqual:
    """At most a share of the elements differs, each by at most `codes` representable values."""
    return MostlyEqual(share, codes)


def accepts(wrong: Callable[[torch.Tensor], torch.Tensor]) -> Accepts:
    """`wrong(got)` marks the elements that are none of the right answers; for a leaf's own check."""
    return Accepts(wrong)


def every(*checks: Check) -> Every:
    """All of several checks."""
    return Every(checks)


_NONFINITE = "non-finite values where finite ones are expected, or the reverse"


def _bounds(elements: Bound | tuple[Bound, ...] | None) -> tuple[Bound, ...]:
    if elements is None:
        return ()
    return (elements,) if isinstance(elements, Bound) else tuple(elements)


def _is_truth(want: torch.Tensor) -> bool:
    import torch

    return want.dtype == torch.float64


def _bad_blocks(diff: torch.Tensor, truth: torch.Tensor, which: Blocks, limit: float) -> tuple[torch.Tensor, int]:
    """Elements to show for the blocks above the limit, in the output's shape, and how many blocks there are."""
    shape = diff.shape if which.shape is None else which.shape
    error, value = diff.reshape(shape), truth.reshape(shape)
    block_error, block_norm = (t.square().sum(dim=which.over, keepdim=True).sqrt() for t in (error, value))
    bad = block_error > limit * block_norm
    num_elems = math.prod(error.shape[d] for d in which.over)
    shown = bad & (error > limit * block_norm / math.sqrt(max(1, num_elems)))
    return shown.reshape(diff.shape), int(bad.sum())


def _exact_leaf(bad: torch.Tensor) -> Leaf:
    if not bool(bad.any()):
        return Leaf(None)
    return Leaf(bad, f"{int(bad.sum())} of {bad.numel()} elements are not exactly as expected")


def _or_all(bad: torch.Tensor, diff: torch.Tensor) -> torch.Tensor:
    """The marked elements; where none is marked, all that differ."""
    return bad if bool(bad.any()) else diff > 0
