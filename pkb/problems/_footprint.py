"""How much memory the arguments of a call take, without making them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._spec import Dtype, Judgeside, Problem
from pkb.problems._tree import tensors


@dataclass(frozen=True)
class Footprint:
    """Memory of the arguments of one call."""

    num_bytes: int
    """Of the rank that has most; in the first draw, since draws may be ragged."""
    is_exact: bool
    """False where shapes depend on values: then it is what a call moves in device memory at least."""


def footprint(problem: Problem, code: Judgeside, size_name: str, world_size: int, dtype: Dtype) -> Footprint:
    """What the arguments of a call take; `inputs` runs on tensors without memory."""
    ranks = range(world_size)
    try:
        most = max(_drawn_bytes(problem, code, size_name, rank, world_size, dtype) for rank in ranks)
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException, _SparseError):
        return Footprint(int(code.cost(problem.sizes[size_name], world_size, dtype).hbm_bytes), is_exact=False)
    return Footprint(most, is_exact=True)


class _SparseError(Exception):
    """How many elements a sparse argument holds depends on values."""


def _drawn_bytes(problem: Problem, code: Judgeside, size_name: str, rank: int, world_size: int, dtype: Dtype) -> int:
    seeds = derive_seeds(b"", problem=problem.id, size=size_name, index=0, rank=rank)
    draw = make_draw(seeds, rank=rank, world_size=world_size, dtype=dtype, index=0, exact=False, device="cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = code.inputs(problem.sizes[size_name], draw)
    if any(isinstance(argument, torch.Tensor) and argument.is_sparse for argument in arguments):
        raise _SparseError
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors(arguments)}
    return sum(storages.values())
