"""The arguments of a call: buffers that keep their addresses, and what a call may or must write to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pkb.problems._expected import Outcome
from pkb.problems._tree import map_tensors, same_bits, tensors


@dataclass(frozen=True)
class Writes:
    """Arguments that a solution may write to, by position."""

    in_place: Mapping[str, int] = field(default_factory=dict)
    """Arguments, by name, whose state after the call is part of the result."""
    free: frozenset[int] = frozenset()
    """Arguments whose state afterwards does not matter."""

    def __bool__(self) -> bool:
        """Whether there are any, so that every call needs fresh contents."""
        return bool(self.in_place or self.free)

    def allows(self, position: int) -> bool:
        """Whether a call may change that argument."""
        return position in self.free or position in self.in_place.values()


@dataclass(frozen=True)
class Filled:
    """Arguments of one call with fresh contents."""

    arguments: tuple[Any, ...]
    """In containers of their own, whose elements a solution may replace."""
    states: Mapping[str, Any]
    """The arguments to be judged after the call, of the tensors that were passed."""
    watched: tuple[tuple[int, torch.Tensor, torch.Tensor], ...]
    """(argument, tensor passed, its contents before) for what must stay as it is."""

    def outcome(self, result: Any) -> Any:
        """A call's result, beside the judged arguments where there are any."""
        return Outcome(result, self.states) if self.states else result

    def differences(self) -> Iterator[tuple[int, torch.Tensor]]:
        """For each watched tensor its argument and, computed in stream order, whether its bits have changed."""
        for position, now, before in self.watched:
            yield position, ~same_bits(now, before)

    def sizes(self) -> set[int]:
        """Bytes of the tensors."""
        return {t.numel() * t.element_size() for t in tensors(self.arguments)}


class Buffers:
    """Memory for arguments, shared by all fills of tensors of the same place, dtype and shape."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._tensors: dict[Hashable, torch.Tensor] = {}

    def fill(self, pristine: tuple[Any, ...]) -> Filled:
        """Copy a draw's tensors, in stream order, into the buffers."""
        places = itertools.count()
        watched: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def filler(position: int) -> Callable[[torch.Tensor], torch.Tensor]:
            def change(tensor: torch.Tensor) -> torch.Tensor:
                key = (next(places), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
                if key not in self._tensors:
                    self._tensors[key] = torch.empty_strided(
                        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
                    )
                buffer = self._tensors[key]
                _unexpanded(buffer).copy_(_unexpanded(tensor))
                if not self._writes.allows(position):
                    watched.append((position, buffer, tensor))
                return buffer

            return change

        arguments = tuple(map_tensors(value, filler(i)) for i, value in enumerate(pristine))
        states = {name: map_tensors(arguments[i], lambda t: t) for name, i in self._writes.in_place.items()}
        return Filled(arguments, states, tuple(watched))


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that have memory of their own; copies onto expanded dimensions are refused."""
    for dim, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if extent > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
