"""What is wrong in a rank's result, sampled so that many hypotheses can be tested on it quickly.

Knows nothing of oracles or causes: it only measures how well another answer fits the wrong elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from pkb.problems._check import Check, Comparison, Every, Exact, ExactFloats, Expected, Outcome, Relative, Step
from pkb.problems._spec import Dtype

NUM_SAMPLES = 4096
"""Elements of an output on which a hypothesis is tested: 95 % is then known to half a percent."""

Answer = Mapping[str, torch.Tensor]
"""Tensors of one rank's result by their path."""


def flatten(value: Any, path: str = "result") -> dict[str, torch.Tensor]:
    """Tensors and numbers of a result or an expected result by path; complex ones as pairs of reals."""
    if isinstance(value, Expected):
        return flatten(value.value, path)
    if isinstance(value, Outcome):
        found = flatten(value.result, path)
        for name, state in value.arguments.items():
            found |= flatten(state, f"argument {name}")
        return found
    if isinstance(value, torch.Tensor):
        return {path: torch.view_as_real(value.resolve_conj()) if value.is_complex() else value}
    if isinstance(value, (int, float)):
        return {path: torch.tensor(float(value), dtype=torch.float64)}
    found = {}
    if isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            found |= flatten(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            found |= flatten(item, f"{path}[{key!r}]")
    return found


@dataclass(frozen=True)
class Region:
    """Where the wrong elements of an output lie."""

    kind: Literal["all", "tail", "block", "scattered"]
    text: str
    """`the last 5 of 105 elements, from [4, 6, 1] on`."""

    @property
    def is_part(self) -> bool:
        """One contiguous part is wrong and the rest is right."""
        return self.kind in ("tail", "block")


def locate(bad: torch.Tensor, alike: torch.Tensor | None = None) -> Region:
    """Describe which elements of a bool tensor are set: all, a suffix, a block, or scattered ones.

    Args:
        bad: the elements.
        alike: others that belong to a region that they lie in, being right by accident.
    """
    flat, total = bad.flatten(), bad.numel()
    full = bad if alike is None else bad | alike
    wrong = int(flat.sum())
    if wrong == total:
        return Region("all", f"all {total} elements" if total != 1 else "the only element")
    if wrong >= 0.9 * total:
        return Region("all", f"{wrong} of {total} elements")
    first = int(flat.int().argmax())
    if _is_dense(full.flatten()[first:]):
        start = list(unravel(first, bad.shape))
        return Region("tail", f"the last {total - first} of {total} elements, from {start} on")
    # Rows are all leading dimensions together.
    table = bad.reshape(-1, bad.shape[-1])
    rows, columns = _bounds(table.any(dim=1)), _bounds(table.any(dim=0))
    words = f"positions {columns[0]} to {columns[1]} of {table.shape[1]}"
    if bad.dim() > 1:
        words = f"rows {rows[0]} to {rows[1]} of {table.shape[0]}, columns" + words.removeprefix("positions")
    box = full.reshape(table.shape)[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1]
    if wrong >= 4 and _is_dense(box) and box.numel() < 0.9 * total:
        return Region("block", f"{words} ({wrong} of {total} elements)")
    return Region("scattered", f"{wrong} of {total} elements within {words}")


def unravel(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Index of a row-major position."""
    index = []
    for extent in reversed(shape):
        index.append(place % extent)
        place //= extent
    return tuple(reversed(index))


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class Match:
    """How well another answer fits a rank's wrong elements."""

    hits: torch.Tensor
    """For each sampled wrong element: the answer has what the rank returned."""
    residual: float
    """||got - answer|| / ||got - expected|| over the hits: near 1 for an answer that is the expected one."""
    coverage: float
    """Share of the elements clearly changed by the mistake, if it was made, that do follow the answer."""

    @property
    def share(self) -> float:
        """Share of the wrong elements that the answer explains."""
        return float(self.hits.float().mean())


@dataclass(frozen=True)
class Output:
    """One wrong output of one rank."""

    path: str
    got: torch.Tensor
    want: torch.Tensor
    bad: torch.Tensor
    """Wrong numbers, bool, shape of `got`."""
    wrong: torch.Tensor
    """Row-major positions of a sample of the wrong elements."""
    anywhere: torch.Tensor
    """Row-major positions of a sample of all elements."""
    slack: float
    """Relative error below which two values count as the same; 0 for equality after rounding."""
    rms: float
    """Root mean square of the expected values."""
    is_complex: bool

    @cached_property
    def values_wrong(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Got and expected at the sample of wrong elements, float64."""
        return sample(self.got, self.wrong), sample(self.want, self.wrong)

    @cached_property
    def values_anywhere(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Got and expected at the sample of all elements, float64."""
        return sample(self.got, self.anywhere), sample(self.want, self.anywhere)

    @cached_property
    def marks(self) -> torch.Tensor:
        """Wrong elements in the output's own shape, where a complex number is one element."""
        return self.bad.any(dim=-1) if self.is_complex else self.bad

    @cached_property
    def num_wrong(self) -> int:
        """How many elements are wrong."""
        return int(self.marks.sum())

    @property
    def num_total(self) -> int:
        """How many elements the output has."""
        return self.marks.numel()

    def shown(self, values: torch.Tensor, place: int) -> str:
        """The value of an element, for messages: with as many digits as tell neighbors apart."""
        digits = 9 if self.got.element_size() >= 4 else 6
        if self.is_complex:
            real, imag = (float(v) for v in values.reshape(-1, 2)[place])
            return f"{real:.{digits}g}{imag:+.{digits}g}j"
        value = values.flatten()[place].item()
        return f"{value:.{digits}g}" if isinstance(value, float) else str(value)

    def near(self, values: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Which sampled values are the other's, up to rounding."""
        if self.slack == 0.0:
            return values == other.to(self.got.dtype).double()
        return (values == other) | ((values - other).abs() <= self.slack * (other.abs() + self.rms))

    def differs(self, other: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Which sampled values of another answer are clearly not the expected ones."""
        apart = (other - want).abs()
        clearly = apart > 4 * self.slack * (want.abs() + self.rms)
        return clearly if bool(clearly.any()) else apart > 0


@dataclass(frozen=True)
class Evidence:
    """All wrong outputs of one rank in one call."""

    rank: int
    outputs: tuple[Output, ...]

    @property
    def num_wrong(self) -> int:
        """How many elements are wrong over all outputs."""
        return sum(output.num_wrong for output in self.outputs)

    def match(self, answer: Answer) -> Match | None:
        """Fit another answer to the wrong elements; None when it lacks an output or has another shape."""
        hits, error, residual, changed, followed = [], 0.0, 0.0, 0, 0
        for output in self.outputs:
            other = answer.get(output.path)
            if other is None or other.numel() != output.got.numel():
                return None
            (got, want), alt = output.values_wrong, sample(other, output.wrong)
            hit = output.near(got, alt) & ((got - alt).abs() <= (got - want).abs())
            hits.append(hit)
            error += float((got - want)[hit].square().sum())
            residual += float((got - alt)[hit].square().sum())
            (got, want), alt = output.values_anywhere, sample(other, output.anywhere)
            changes = output.differs(alt, want)
            changed += int(changes.sum())
            followed += int((changes & ((got - alt).abs() < (got - want).abs())).sum())
        return Match(
            hits=torch.cat(hits),
            residual=math.sqrt(residual / error) if error > 0.0 else 1.0,
            coverage=followed / changed if changed else 0.0,
        )


def sample(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Values at row-major positions, float64."""
    return tensor.flatten()[places.to(tensor.device)].double().cpu()


def collect(rank: int, comparison: Comparison, got: Any, want: Any, rules: Rules) -> Evidence | None:
    """Evidence of one rank's findings on values; None when there is none that can be located."""
    outputs = tuple(_outputs(comparison, got, want, rules))
    return Evidence(rank, outputs) if outputs else None


@dataclass(frozen=True)
class Rules:
    """How close two values have to be in one call to count as the same."""

    check: Check
    dtype: Dtype
    exact: bool

    def slack(self, dtype: torch.dtype, check: Check | None = None) -> float:
        """Relative error that rounding may cause in an output of the given dtype; 0 stands for none.

        Args:
            dtype: of the output.
            check: what it is judged by, if not by the problem's check.
        """
        check = check or self.check
        if isinstance(check, ExactFloats):
            check = check.otherwise
        if isinstance(check, Every):
            check = check.checks[0]
        if self.exact or isinstance(check, Exact) or not dtype.is_floating_point:
            return 0.0
        # Twice the distance of neighboring values, and room for float32 sums in another order.
        rounding = max(2 * torch.finfo(dtype).eps, 2e-5)
        if isinstance(check, (Relative, Step)) and check.tolerance is not None:
            return max(rounding, 2 * check.tolerance[self.dtype])
        return rounding


def _outputs(comparison: Comparison, got: Any, want: Any, rules: Rules) -> Iterator[Output]:
    all_got, all_want = flatten(got), flatten(want)
    for finding in comparison.findings:
        if finding.kind == "agreement":
            continue
        value, truth = all_got.get(finding.output), all_want.get(finding.output)
        if value is None or truth is None or value.shape != truth.shape or value.numel() == 0:
            continue
        is_complex = finding.got is not None and finding.got.is_complex()
        bad = torch.ones_like(value, dtype=torch.bool) if finding.bad is None else finding.bad
        if is_complex and bad.shape == value.shape[:-1]:
            bad = bad.unsqueeze(-1).expand(value.shape)
        if bad.shape != value.shape:
            continue
        if not bool(bad.any()):
            continue
        bad = bad.contiguous()
        anywhere = _pick(torch.arange(bad.numel()) if bad.numel() <= NUM_SAMPLES else None, bad.numel())
        yield Output(
            path=finding.output,
            got=value,
            want=truth,
            bad=bad,
            wrong=_pick(bad.flatten().nonzero().flatten().cpu(), bad.numel()),
            anywhere=anywhere,
            slack=rules.slack(value.dtype, finding.check),
            rms=_rms(sample(truth, anywhere)),
            is_complex=is_complex,
        )


def _pick(places: torch.Tensor | None, total: int) -> torch.Tensor:
    """At most NUM_SAMPLES of the positions (None: of all below total), the same ones each time."""
    count = total if places is None else len(places)
    if places is not None and count <= NUM_SAMPLES:
        return places
    chosen = torch.randint(count, (NUM_SAMPLES,), generator=torch.Generator().manual_seed(0)).sort().values
    return chosen if places is None else places[chosen]


def _rms(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)]
    return float(finite.square().mean().sqrt()) if len(finite) else 0.0


def _is_dense(marked: torch.Tensor) -> bool:
    """A region counts as wrong throughout although some of its elements are right by accident."""
    return float(marked.float().mean()) >= 0.85


def _bounds(marked: torch.Tensor) -> tuple[int, int]:
    places = marked.nonzero().flatten()
    return int(places[0]), int(places[-1])
