"""What an oracle returns, leaf by leaf. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pkb.problems._checks import Check


# An oracle returns for each rank a leaf, or a tuple, list or dict of leaves, or an `Outcome` of these. A leaf is
# a tensor, one of the classes below, a number, a torch.Size or None. A float64 tensor stands for mathematics to be
# returned in the working dtype; any other dtype for itself.


@dataclass(frozen=True)
class Region:
    """A part of an output that is judged on its own, because its errors disappear in the norm of the whole."""

    name: str
    """For messages: `columns of rank 2`."""
    index: Any
    """What `tensor[index]` takes: slices, integers, an index tensor, or a bool mask over leading dimensions."""
    check: Check | None = None
    """None: the tolerance of the whole output, without its bounds on elements and rows."""


@dataclass(frozen=True)
class Expected:
    """A tensor with demands of its own; every field but `value` may be left out."""

    value: torch.Tensor
    dtype: torch.dtype | None = None
    """None: the working dtype where `value` is float64, else the dtype of `value`."""
    check: Check | None = None
    """None: the problem's check."""
    regions: tuple[Region, ...] = ()
    skip: torch.Tensor | None = None
    """Bool over leading dimensions: elements or rows that are not judged; both sides count as zero there."""
    device: str | None = None
    """`cpu` for an output on the host; None: where the arguments are."""
    agree: bool = False
    """The ranks' results must be equal bit by bit."""

    def __post_init__(self) -> None:
        """Fill in what may have been given as a list."""
        object.__setattr__(self, "regions", tuple(self.regions))


@dataclass(frozen=True)
class Unspecified:
    """An output of which only shape and dtype are judged; dtype None is the working dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a call together with the state in which it leaves the arguments that `in_place` names."""

    result: Any
    arguments: Mapping[str, Any]
    """By name: the argument as it is after the call, of the same form as the argument."""


@dataclass(frozen=True)
class Foreign:
    """Something returned that is no plain tensor on the right device, number, None, tuple, list or dict."""

    description: str
