"""The tensors within arguments: in lists, tuples and dicts, in modules, in sparse tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every dense tensor within a value: what a solution could write to. Sparse ones have two parts."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            yield from (value._indices(), value._values())
        else:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, torch.nn.Module):
        yield from (p.detach() for p in value.parameters())
        yield from value.buffers()


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same value in new containers, with every tensor of `tensors(value)`, in that order, changed."""
    if isinstance(value, torch.Tensor):
        if not value.is_sparse:
            return change(value)
        return torch.sparse_coo_tensor(
            change(value._indices()),
            change(value._values()),
            value.shape,
            is_coalesced=value.is_coalesced(),
            check_invariants=False,
        )
    if isinstance(value, (tuple, list)):
        return type(value)([map_tensors(item, change) for item in value])
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, torch.nn.Module):
        # What the memo holds is not copied, so a module of gigabytes takes no second copy.
        memo: dict[int, Any] = {}
        for p in value.parameters():
            memo[id(p)] = torch.nn.Parameter(change(p.detach()), requires_grad=p.requires_grad)
        for buffer in value.buffers():
            memo[id(buffer)] = change(buffer)
        return copy.deepcopy(value, memo)
    return value


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes in row-major order, uint8; no copy of a contiguous tensor."""
    flat = tensor.contiguous().reshape(-1)
    # A single element may have any stride, and a view of bytes wants 1.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Whether two tensors of one shape and dtype have the same bits; a scalar on their device."""
    if left.dtype.is_complex:
        left, right = torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj())
    if left.dtype.is_floating_point:
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
        left, right = left.view(integer), right.view(integer)
    return (left == right).all()
