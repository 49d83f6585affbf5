"""Comparing what a rank returned with what the oracle expects. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pkb.problems._spec import Dtype

if TYPE_CHECKING:
    import torch


# What an oracle returns: a tensor, one of the three below, a number, None, or a tuple, list or dict of these.
# A float64 tensor stands for mathematics to be returned in the working dtype; any other dtype for itself.


@dataclass(frozen=True)
class Expected:
    """An output whose dtype is not the working dtype although its truth is float64."""

    value: torch.Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class Unspecified:
    """An output of which only shape and dtype are judged; dtype None is the working dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Foreign:
    """Something returned that is no plain tensor on the right device, number, None, tuple, list or dict."""

    description: str


@dataclass(frozen=True)
class Finding:
    """One output of one rank that is not as it should be."""

    kind: Literal["container", "dtype", "shape", "values"]
    output: str
    """Path of the output: `result`, `result[1]`, `result['loss']`."""
    detail: str
    got: torch.Tensor | None = None
    want: torch.Tensor | None = None
    """Truth, float64 for floating outputs."""
    bad: torch.Tensor | None = None
    """Which elements are wrong, bool, same shape."""


@dataclass(frozen=True)
class Comparison:
    """All findings of one rank's result, and its largest relative error."""

    findings: tuple[Finding, ...]
    error: float | None
    tolerance: float | None
    rounding_error: float | None

    @property
    def passed(self) -> bool:
        """Nothing was found."""
        return not self.findings


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


@dataclass(frozen=True)
class Exact:
    """Every bit equal, so that -0.0 and NaN payloads count."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare integer views of both."""
        bad = _bits(got) != _bits(want.to(got.dtype))
        return _exact_leaf(bad)


@dataclass(frozen=True)
class ExactValues:
    """Every value equal, zeros of either sign alike: the check of exact trials."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare as numbers."""
        return _exact_leaf(~(_wide(got) == _wide(want)))


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
class Relative:
    """||got - want|| / ||want|| at most the dtype's tolerance; optionally bounds per element and per row.

    Outputs that are integers or booleans have to be exact: ids and counts are never nearly right.
    """

    tolerance: Mapping[str, float]
    elements: Bound | None = None
    rows: float | None = None
    """Largest ||error of a row|| / ||row||, rows along the last dimension; a zero row must be exactly 0."""

    def values(self, got: torch.Tensor, want: torch.Tensor, dtype: Dtype) -> Leaf:
        """Compare in float64; where `want` is not finite, `got` must be the same."""
        import torch

        if not (want.is_floating_point() or want.is_complex()):
            return Exact().values(got, want, dtype)
        got64, want64 = _wide(got), _wide(want)
        tolerance = self.tolerance[dtype]
        finite = torch.isfinite(want64)
        bad = torch.where(finite, ~torch.isfinite(got64), ~_same_nonfinite(got64, want64))
        if bool(bad.any()):
            return Leaf(
                bad, "non-finite values where finite ones are expected, or the reverse", None, tolerance
            )
        diff = torch.where(finite, got64 - want64, 0.0).abs()
        truth = torch.where(finite, want64, 0.0).abs()
        error = _ratio(float(diff.norm()), float(truth.norm()))
        for bad, detail in self._violations(diff, truth, error, dtype):
            return Leaf(bad, detail, _finite_or_none(error), tolerance)
        return Leaf(None, "", error, tolerance)

    def _violations(
        self, diff: torch.Tensor, truth: torch.Tensor, error: float, dtype: Dtype
    ) -> Iterator[tuple[torch.Tensor, str]]:
        """Every bound that is broken, with the elements to show for it."""
        rms = float(truth.norm()) / math.sqrt(max(1, truth.numel()))
        tolerance = self.tolerance[dtype]
        if error > tolerance:
            bad = diff > tolerance * (truth + rms)
            shown = bad if bool(bad.any()) else diff > 0
            yield shown, f"relative error {error:.3g}, at most {tolerance:g} passes"
        if self.elements is not None and dtype in self.elements.dtypes:
            e = self.elements
            bad = diff > e.rms * rms + e.rel * truth + e.floor
            if bool(bad.any()):
                bound = f"{e.rms:g} rms + {e.rel:g} |expected| + {e.floor:g}"
                yield bad, f"{int(bad.sum())} elements are off by more than {bound}"
        if self.rows is not None and diff.dim() > 0:
            row_error, row_norm = diff.norm(dim=-1), truth.norm(dim=-1)
            bad_rows = row_error > self.rows * row_norm
            if bool(bad_rows.any()):
                mean_bound = self.rows * row_norm / math.sqrt(max(1, diff.shape[-1]))
                bad = bad_rows.unsqueeze(-1) & (diff > mean_bound.unsqueeze(-1))
                yield bad, f"{int(bad_rows.sum())} rows have a relative error above {self.rows:g}"


def exact() -> Exact:
    """Every bit equal."""
    return Exact()


def relative(
    *, bf16: float, fp32: float, elements: Bound | None = None, rows: float | None = None
) -> Relative:
    """Relative error in the Frobenius norm, with a tolerance for each working dtype."""
    return Relative({"bf16": bf16, "fp32": fp32}, elements, rows)


def compare(check: Check, got: Any, want: Any, dtype: Dtype) -> Comparison:
    """Compare one rank's result with the oracle's: container, dtype, shape, then values.

    Args:
        check: how values of tensors are compared.
        got: the result, of tensors, numbers, None, tuples, lists and dicts; anything else as `Foreign`.
        want: what the oracle returned for this rank.
        dtype: working dtype, which float64 tensors of `want` stand for.
    """
    findings: list[Finding] = []
    leaves: list[Leaf] = []
    roundings: list[float] = []
    for finding, leaf, rounding in _walk(check, got, want, dtype, "result"):
        if finding is not None:
            findings.append(finding)
        if leaf is not None:
            leaves.append(leaf)
        if rounding is not None:
            roundings.append(rounding)
    errors = [leaf.error for leaf in leaves if leaf.error is not None]
    tolerances = [leaf.tolerance for leaf in leaves if leaf.tolerance is not None]
    comparable = not findings or all(leaf.error is not None for leaf in leaves if leaf.tolerance is not None)
    return Comparison(
        findings=tuple(findings),
        error=max(errors) if errors and comparable else None,
        tolerance=max(tolerances) if tolerances else None,
        rounding_error=max(roundings) if roundings else None,
    )


_Step = tuple[Finding | None, Leaf | None, float | None]


def _walk(check: Check, got: Any, want: Any, dtype: Dtype, path: str) -> Iterator[_Step]:
    import torch

    if isinstance(want, (torch.Tensor, Expected, Unspecified)):
        yield from _tensor(check, got, want, dtype, path)
    elif isinstance(want, (tuple, list)):
        if type(got) is not type(want) or len(got) != len(want):
            yield Finding("container", path, f"expected {_describe(want)}, got {_describe(got)}"), None, None
            return
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            yield from _walk(check, g, w, dtype, f"{path}[{i}]")
    elif isinstance(want, dict):
        if type(got) is not dict or set(got) != set(want):
            yield Finding("container", path, f"expected {_describe(want)}, got {_describe(got)}"), None, None
            return
        for key, w in want.items():
            yield from _walk(check, got[key], w, dtype, f"{path}[{key!r}]")
    elif type(got) is not type(want):
        yield Finding("container", path, f"expected {_describe(want)}, got {_describe(got)}"), None, None
    elif got != want:
        yield Finding("values", path, f"expected {want!r}, got {got!r}"), None, None


def _tensor(
    check: Check, got: Any, want: torch.Tensor | Expected | Unspecified, dtype: Dtype, path: str
) -> Iterator[_Step]:
    import torch

    if not isinstance(got, torch.Tensor):
        yield Finding("container", path, f"expected a tensor, got {_describe(got)}"), None, None
        return
    want_dtype = expected_dtype(want, dtype)
    want_shape = tuple(want.shape if not isinstance(want, Expected) else want.value.shape)
    if got.dtype != want_dtype:
        yield Finding("dtype", path, f"expected dtype {want_dtype}, got {got.dtype}"), None, None
        return
    if tuple(got.shape) != want_shape:
        detail = f"expected shape {list(want_shape)}, got {list(got.shape)}"
        yield Finding("shape", path, detail), None, None
        return
    if isinstance(want, Unspecified):
        return
    truth = want.value if isinstance(want, Expected) else want
    leaf = check.values(got, truth, dtype)
    finding = None
    if leaf.bad is not None:
        finding = Finding("values", path, leaf.detail, got=got, want=truth, bad=leaf.bad)
    yield finding, leaf, _rounding_error(truth, want_dtype)


def expected_dtype(want: torch.Tensor | Expected | Unspecified, dtype: Dtype) -> torch.dtype:
    """The dtype that an output has to have in the given working dtype."""
    import torch

    from pkb.problems._spec import torch_dtype

    if isinstance(want, Expected):
        return want.dtype
    if want.dtype is None or want.dtype == torch.float64:
        return torch_dtype(dtype)
    return want.dtype


def _rounding_error(truth: torch.Tensor, dtype: torch.dtype) -> float | None:
    import torch

    if truth.dtype != torch.float64 or truth.numel() == 0:
        return None
    finite = torch.where(torch.isfinite(truth), truth, 0.0)
    return _finite_or_none(_ratio(float((finite.to(dtype).double() - finite).norm()), float(finite.norm())))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.contiguous())
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64, or complex128: a plain cast would drop imaginary parts."""
    import torch

    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def _exact_leaf(bad: torch.Tensor) -> Leaf:
    if not bool(bad.any()):
        return Leaf(None)
    return Leaf(bad, f"{int(bad.sum())} of {bad.numel()} elements are not exactly as expected")


def _same_nonfinite(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    import torch

    return (got == want) | (torch.isnan(got) & torch.isnan(want))


def _ratio(error: float, norm: float) -> float:
    """error / norm, where nothing over nothing is 0 and something over nothing is infinite."""
    if norm > 0.0:
        return error / norm
    return 0.0 if error == 0.0 else math.inf


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _describe(value: Any) -> str:
    """A value's kind in a few words, for messages."""
    import torch

    if isinstance(value, Foreign):
        return value.description
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with keys {sorted(map(str, value))}"
    if isinstance(value, (torch.Tensor, Expected, Unspecified)):
        return "a tensor"
    return repr(value) if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"
