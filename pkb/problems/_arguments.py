"""What the arguments of a call look like at a size, without making them: names, shapes, dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._spec import Dtype, Group, Problem


def describe_arguments(problem: Problem, size_name: str, world_size: int, dtype: Dtype) -> dict[str, str] | None:
    """What rank 0 gets for each argument, in words; None where shapes depend on the values that are drawn."""
    seeds = derive_seeds(b"", problem=problem.id, size=size_name, index=0, rank=0)
    draw = make_draw(seeds, rank=0, world_size=world_size, dtype=dtype, index=0, exact=False, device="cpu")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            arguments = problem.load().inputs(problem.sizes[size_name], draw)
            # Arguments with a default may be left out.
            return dict(zip(problem.argument_names(), map(_in_words, arguments), strict=False))
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException):
        return None


def _in_words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Group):
        return "process group"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_in_words(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        parts = list(map(_in_words, value))
        if len(parts) > 3 and len(set(parts)) == 1:
            return f"{type(value).__name__} of {len(parts)} x {parts[0]}"
        return f"{type(value).__name__} of ({', '.join(parts)})"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
