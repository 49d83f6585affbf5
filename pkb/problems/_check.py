"""Comparing what ranks returned with what the oracle expects. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pkb.problems._checks import (
    ELEMENTS,
    Accepts,
    Blocks,
    Bound,
    Check,
    Every,
    Exact,
    ExactFloats,
    ExactValues,
    Leaf,
    MostlyEqual,
    Relative,
    Step,
    accepts,
    blocks,
    every,
    exact,
    exact_values,
    mostly_equal,
    relative,
    step,
    within,
)
from pkb.problems._expected import Expected, Foreign, Outcome, Region, Unspecified
from pkb.problems._numbers import bits, rounding_error
from pkb.problems._spec import Dtype, torch_dtype

if TYPE_CHECKING:
    import torch

__all__ = [
    "ELEMENTS",
    "Accepts",
    "Blocks",
    "Bound",
    "Check",
    "Comparison",
    "Every",
    "Exact",
    "ExactFloats",
    "ExactValues",
    "Expected",
    "Finding",
    "Foreign",
    "Leaf",
    "MostlyEqual",
    "Outcome",
    "Region",
    "Relative",
    "Step",
    "Unspecified",
    "accepts",
    "blocks",
    "compare",
    "compare_ranks",
    "every",
    "exact",
    "exact_values",
    "expected_dtype",
    "mostly_equal",
    "relative",
    "step",
    "within",
]


@dataclass(frozen=True)
class Finding:
    """One output of one rank that is not as it should be."""

    kind: Literal["container", "dtype", "shape", "values", "agreement"]
    """`agreement`: right by itself, but not what another rank returned."""
    output: str
    """Path of the output: `result`, `result[1]`, `result['loss']`, `argument grads[0]`."""
    detail: str
    got: torch.Tensor | None = None
    want: torch.Tensor | None = None
    """Truth, float64 for floating outputs."""
    bad: torch.Tensor | None = None
    """Which elements are wrong, bool, same shape."""
    check: Check | None = None
    """What the values were judged by."""


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


def compare(check: Check, got: Any, want: Any, dtype: Dtype, device: str | None = None) -> Comparison:
    """Compare one rank's result with the oracle's: container, dtype, shape, then values.

    Args:
        check: how values of tensors are compared where a leaf has no check of its own.
        got: the result, of tensors, numbers, None, tuples, lists and dicts; anything else as `Foreign`.
        want: what the oracle returned for this rank.
        dtype: working dtype, which float64 tensors of `want` stand for.
        device: where outputs have to be that name no device; None: anywhere.
    """
    findings: list[Finding] = []
    leaves: list[Leaf] = []
    roundings: list[float] = []
    for finding, leaf, rounding in _walk(_Context(check, dtype, device), got, want, "result"):
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


def compare_ranks(
    check: Check,
    got: Sequence[Any],
    want: Sequence[Any],
    dtype: Dtype,
    *,
    agree: bool = False,
    device: str | None = None,
) -> list[Comparison]:
    """Compare the results of all ranks, each with its truth and, where replicas must agree, with rank 0's.

    Args:
        check: how values of tensors are compared where a leaf has no check of its own.
        got: results by rank.
        want: what the oracle returned, by rank.
        dtype: working dtype.
        agree: all outputs must agree between ranks; else those whose `Expected` says so.
        device: where outputs have to be that name no device; None: anywhere.
    """
    found = [compare(check, g, w, dtype, device) for g, w in zip(got, want, strict=True)]
    outputs = [dict(_leaves(g, "result")) for g in got]
    for path, leaf in _leaves(want[0], "result"):
        if not _is_replica(leaf, agree):
            continue
        for rank in range(1, len(got)):
            finding = _disagreement(path, outputs[rank].get(path), outputs[0].get(path))
            if finding is not None and not any(f.output == path for f in found[rank].findings):
                found[rank] = replace(found[rank], findings=(*found[rank].findings, finding))
    return found


def expected_dtype(want: torch.Tensor | Expected | Unspecified, dtype: Dtype) -> torch.dtype:
    """The dtype that an output has to have in the given working dtype."""
    import torch

    own = want.dtype
    if own is None and isinstance(want, Expected):
        own = want.value.dtype
        return torch_dtype(dtype) if own == torch.float64 else own
    if own is None or (own == torch.float64 and not isinstance(want, Expected)):
        return torch_dtype(dtype)
    return own


@dataclass(frozen=True)
class _Context:
    check: Check
    dtype: Dtype
    device: str | None

    def check_of(self, want: Expected) -> Check:
        """The leaf's own check before the problem's, in exact trials too."""
        if want.check is None:
            return self.check
        return ExactFloats(want.check) if isinstance(self.check, ExactFloats) else want.check


_Step = tuple[Finding | None, Leaf | None, float | None]


def _walk(context: _Context, got: Any, want: Any, path: str) -> Iterator[_Step]:
    import torch

    if isinstance(want, Unspecified):
        yield _form(context, got, want, path), None, None
    elif isinstance(want, (torch.Tensor, Expected)):
        yield _tensor(context, got, want if isinstance(want, Expected) else Expected(want), path)
    elif not _is_like(got, want):
        yield Finding("container", path, f"expected {_describe(want)}, got {_describe(got)}"), None, None
    elif _is_container(want):
        parts = dict(_parts(got, path))
        for name, part in _parts(want, path):
            yield from _walk(context, parts[name], part, name)
    elif got != want:
        yield Finding("values", path, f"expected {want!r}, got {got!r}"), None, None


def _is_container(value: Any) -> bool:
    return isinstance(value, (tuple, list, dict, Outcome))


def _is_like(got: Any, want: Any) -> bool:
    """Of the same type; containers also of the same parts."""
    if type(got) is not type(want):
        return False
    return not _is_container(want) or [n for n, _ in _parts(got, "")] == [n for n, _ in _parts(want, "")]


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """Parts of a container with their paths, those of a dict by key."""
    if isinstance(value, Outcome):
        arguments = [(f"argument {name}", value.arguments[name]) for name in sorted(value.arguments)]
        return [(path, value.result), *arguments]
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", value[key]) for key in sorted(value, key=repr)]
    return [(f"{path}[{i}]", item) for i, item in enumerate(value)]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if _is_container(value):
        for name, part in _parts(value, path):
            yield from _leaves(part, name)
    else:
        yield path, value


def _form(context: _Context, got: Any, want: Expected | Unspecified, path: str) -> Finding | None:
    """What is wrong with a tensor before its values are looked at."""
    import torch

    if not isinstance(got, torch.Tensor):
        return Finding("container", path, f"expected a tensor, got {_describe(got)}")
    device = (want.device if isinstance(want, Expected) else None) or context.device
    if device is not None and got.device.type != device.partition(":")[0]:
        return Finding("container", path, f"expected a tensor on {device}, got one on {got.device}")
    dtype = expected_dtype(want, context.dtype)
    if got.dtype != dtype:
        return Finding("dtype", path, f"expected dtype {dtype}, got {got.dtype}")
    shape = tuple(want.value.shape if isinstance(want, Expected) else want.shape)
    if tuple(got.shape) != shape:
        return Finding("shape", path, f"expected shape {list(shape)}, got {list(got.shape)}")
    return None


def _tensor(context: _Context, got: Any, want: Expected, path: str) -> _Step:
    finding = _form(context, got, want, path)
    if finding is not None:
        return finding, None, None
    check, truth = context.check_of(want), want.value
    judged, target = got.to(truth.device), truth
    if want.skip is not None:
        skip = _over_leading(want.skip, truth)
        judged, target = judged.masked_fill(skip, 0), truth.masked_fill(skip, 0)
    leaf = check.values(judged, target, context.dtype)
    if leaf.bad is None:
        leaf = _first_bad_region(context, check, judged, replace(want, value=target)) or leaf
    if leaf.bad is not None:
        finding = Finding("values", path, leaf.detail, got=got, want=truth, bad=leaf.bad, check=check)
    return finding, leaf, rounding_error(target, got.dtype)


def _first_bad_region(context: _Context, check: Check, got: torch.Tensor, want: Expected) -> Leaf | None:
    import torch

    for region in want.regions:
        part_check = region.check or check.at(region.index)
        part = part_check.values(got[region.index], want.value[region.index], context.dtype)
        if part.bad is not None:
            bad = torch.zeros(got.shape, dtype=torch.bool, device=part.bad.device)
            bad[region.index] = part.bad
            return replace(part, bad=bad, detail=f"{region.name}: {part.detail}")
    return None


def _over_leading(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A mask over leading dimensions as one over all."""
    return mask.reshape(mask.shape + (1,) * (tensor.dim() - mask.dim())).expand(tensor.shape)


def _is_replica(leaf: Any, agree: bool) -> bool:
    import torch

    return leaf.agree or agree if isinstance(leaf, Expected) else agree and isinstance(leaf, torch.Tensor)


def _disagreement(path: str, got: Any, first: Any) -> Finding | None:
    """A finding if a rank's tensor is not, bit by bit, that of rank 0; None if it is, or is another kind of thing."""
    import torch

    if not isinstance(got, torch.Tensor) or not isinstance(first, torch.Tensor):
        return None
    if (got.dtype, got.shape) != (first.dtype, first.shape):
        return None
    differs = bits(got) != bits(first.to(got.device))
    bad = differs.any(dim=-1) if got.is_complex() else differs
    if not bool(bad.any()):
        return None
    detail = f"{int(bad.sum())} of {bad.numel()} elements differ from rank 0's, all ranks must return the same bits"
    return Finding("agreement", path, detail, got=got, want=first, bad=bad)


def _describe(value: Any) -> str:
    """A value's kind in a few words, for messages."""
    import torch

    if isinstance(value, Foreign):
        return value.description
    if isinstance(value, Outcome):
        return f"a result and arguments {sorted(value.arguments)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with keys {sorted(map(str, value))}"
    if isinstance(value, (torch.Tensor, Expected, Unspecified)):
        return "a tensor"
    return repr(value) if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"
