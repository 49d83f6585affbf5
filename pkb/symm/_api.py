"""`empty` and `rendezvous`: checks that hold for every backend, then the backend of the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pkb.records.errors import UsageError
from pkb.symm import _cuda, _host
from pkb.symm._group import gather, require_member
from pkb.symm._handle import Handle
from pkb.symm._segment import Segment

_UNDEFINED_BYTE = 0xFF
"""All bits set is NaN in the IEEE float dtypes, so that data which was never written shows."""


def empty(
    *shape: int | Sequence[int], dtype: torch.dtype, device: torch.device | str | int | None = None
) -> torch.Tensor:
    """Allocate this rank's part of a symmetric buffer; hand it to `rendezvous` on all ranks.

    Args:
        shape: dimensions, as separate integers or as one sequence; equal on all ranks.
        dtype: any torch dtype, equal on all ranks.
        device: where it lives. None stands for the current GPU if this process has used CUDA, else the CPU.

    Returns:
        A contiguous tensor with undefined contents: every byte is 0xFF, which is NaN as a float.

    Raises:
        UsageError: a dimension is negative, the device has no backend, or there is no room.
    """
    dims = _dims(shape)
    place = _place(device)
    num_bytes = math.prod(dims) * dtype.itemsize
    raw = _cuda.allocate(num_bytes, place) if place.type == "cuda" else _host.allocate(num_bytes)
    raw.fill_(_UNDEFINED_BYTE)
    if place.type == "cuda":
        # A peer may write into the buffer right after the rendezvous, which orders hosts and not streams.
        torch.cuda.current_stream(place).synchronize()
    return raw[:num_bytes].view(dtype).view(dims)


def in_use() -> bool:
    """Whether this rank holds a symmetric buffer."""
    return _host.in_use() or _cuda.in_use()


def rendezvous(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> Handle:
    """Map the buffers of all ranks into each other. Collective: all ranks call it in the same order.

    A second call for the same buffer returns at once, so it may stand in front of every use.

    Args:
        tensor: what `empty` returned, or a contiguous view that starts where it starts.
        group: the ranks that take part; None stands for the default group. A buffer belongs to one group.

    Raises:
        UsageError: on every rank alike when the ranks' tensors differ in shape, dtype or device, or when
            one of them did not come from `empty`; on this rank when torch.distributed is not initialized.
    """
    members = require_member(group)
    buffer = _buffer_of(tensor)
    unfit = _why_unfit(tensor, buffer, members)
    if unfit or buffer is None or buffer.group_name is None:
        _require_agreement(gather(_describe(tensor, buffer, unfit), members))
    assert buffer is not None, "a tensor without a buffer is unfit"
    if isinstance(buffer, _cuda.Allocation):
        return _cuda.CudaHandle(tensor, buffer.mapped or buffer.connect(tensor, members))
    if not buffer.peers:
        buffer.connect(members)
    return _host.HostHandle(tensor, buffer)


@dataclass(frozen=True)
class _Offer:
    """What one rank brings to a rendezvous."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    num_bytes: int
    """Size of the whole buffer, of which the tensor may be a part."""
    unfit: str
    """Why the tensor cannot be shared; empty if it can."""

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype} on {self.device} ({self.num_bytes} bytes)"


def _describe(tensor: torch.Tensor, buffer: Segment | _cuda.Allocation | None, unfit: str) -> _Offer:
    if buffer is None:
        return _Offer((), "", "", 0, unfit)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _Offer(tuple(tensor.shape), dtype, tensor.device.type, buffer.num_bytes, unfit)


def _require_agreement(offers: list[_Offer]) -> None:
    for rank, offer in enumerate(offers):
        if offer.unfit:
            raise UsageError(f"rendezvous: rank {rank} {offer.unfit}")
    if len(set(offers)) > 1:
        lines = "; ".join(f"rank {rank} has {offer}" for rank, offer in enumerate(offers))
        raise UsageError(
            f"rendezvous: the ranks' buffers differ: {lines}. Call empty() with the same shape, dtype"
            " and kind of device on every rank."
        )


def _buffer_of(tensor: torch.Tensor) -> Segment | _cuda.Allocation | None:
    if not isinstance(tensor, torch.Tensor) or tensor.device.type not in ("cpu", "cuda"):
        return None
    return _cuda.find(tensor) if tensor.is_cuda else _host.find(tensor)


def _why_unfit(tensor: torch.Tensor, buffer: Segment | _cuda.Allocation | None, group: dist.ProcessGroup) -> str:
    if buffer is None:
        is_tensor = isinstance(tensor, torch.Tensor)
        kind = f"a tensor on {tensor.device}" if is_tensor else f"a {type(tensor).__name__}"
        return (
            f"passed {kind} that did not come from pkb.symm.empty(). Allocate with"
            " pkb.symm.empty(shape, dtype=..., device=...), rendezvous that, and copy the data into it."
        )
    if not tensor.is_contiguous() or tensor.storage_offset() != 0:
        return (
            "passed a view that is not contiguous or does not start where its symmetric buffer starts."
            " Pass the tensor that pkb.symm.empty() returned, and slice what peer() gives."
        )
    if buffer.group_name is not None and buffer.group_name != group.group_name:
        return (
            f"passed a buffer that already belongs to the group {buffer.group_name!r}. Allocate one buffer per group."
        )
    return ""


def _dims(shape: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    dims = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    if not all(isinstance(n, int) and n >= 0 for n in dims):
        raise UsageError(f"empty: expected non-negative integers as the shape, got {shape!r}.")
    return tuple(n for n in dims if isinstance(n, int))


def _place(device: torch.device | str | int | None) -> torch.device:
    place = torch.device(_default_device_type() if device is None else device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"empty: device {str(place)!r} was asked for, and torch sees no GPU here. Use device='cpu'.")
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"empty: device {str(place)!r} has no symmetric memory. Use 'cpu' or 'cuda'.")
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place


def _default_device_type() -> str:
    return "cuda" if torch.cuda.is_initialized() else "cpu"
