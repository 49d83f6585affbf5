"""Tensors as numbers and as bits, for checks. Importable without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as integers."""
    import torch

    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj().contiguous())
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer)


def rounding_error(truth: torch.Tensor, dtype: torch.dtype) -> float | None:
    """Relative error of correct rounding; None where the truth is no float64."""
    import torch

    if truth.dtype != torch.float64 or truth.numel() == 0:
        return None
    finite = torch.where(torch.isfinite(truth), truth, 0.0)
    return finite_or_none(ratio(float((finite.to(dtype).double() - finite).norm()), float(finite.norm())))


def finite_or_none(value: float) -> float | None:
    """The value; None for what JSON cannot hold."""
    return value if math.isfinite(value) else None


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64, or complex128: a plain cast would drop imaginary parts."""
    import torch

    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def wild(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor | None:
    """Elements that are finite on one side only, or differently infinite; None if there are none."""
    import torch

    a, b = wide(got), wide(want)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    bad = torch.where(torch.isfinite(b), ~torch.isfinite(a), ~same)
    return bad if bool(bad.any()) else None


def difference(got: torch.Tensor, want: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """|got - want| and |want|, zero where the truth is not finite."""
    import torch

    a, b = wide(got), wide(want)
    finite = torch.isfinite(b)
    return torch.where(finite, a - b, 0.0).abs(), torch.where(finite, b, 0.0).abs()


def code(tensor: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the values, neighbors one apart, zeros of either sign alike."""
    import torch

    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    width = 8 * tensor.element_size()
    raw = bits(tensor).to(torch.int64) & ((1 << width) - 1 if width < 64 else -1)
    sign, magnitude = raw >> (width - 1) & 1, raw & ((1 << (width - 1)) - 1)
    return torch.where(sign == 1, -magnitude, magnitude)


def ratio(error: float, norm: float) -> float:
    """error / norm, where nothing over nothing is 0 and something over nothing is infinite."""
    if norm > 0.0:
        return error / norm
    return 0.0 if error == 0.0 else math.inf
