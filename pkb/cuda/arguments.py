"""Python values to the block of bytes that a kernel takes as its parameters, checked against the kernel itself."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Codes of struct by kind and width of a NumPy scalar.
_NUMPY_CODES = {
    ("b", 1): "?",
    ("i", 1): "b",
    ("i", 2): "h",
    ("i", 4): "i",
    ("i", 8): "q",
    ("u", 1): "B",
    ("u", 2): "H",
    ("u", 4): "I",
    ("u", 8): "Q",
    ("f", 2): "e",
    ("f", 4): "f",
    ("f", 8): "d",
}
_CTYPES = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_HINTS = {
    1: "numpy.int8, numpy.uint8 or bool",
    2: "numpy.int16, numpy.uint16 or numpy.float16",
    4: "numpy.int32 or numpy.uint32 (float for a float)",
    8: "int, a tensor, numpy.uint64 or numpy.float64",
}

# kMaxRanks of memory.cuh.
MAX_RANKS = 8
C_TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
"""C types of the floating dtypes that `PackOf` of memory.cuh handles."""


def peers(pointers: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Peer pointers of a symmetric buffer, by rank, as the argument for a `Peers` parameter (memory.cuh).

    Raises:
        ValueError: there are more than `Peers` holds.
    """
    if len(pointers) > MAX_RANKS:
        raise ValueError(f"{len(pointers)} peer pointers, but Peers of memory.cuh holds {MAX_RANKS}.")
    return (ctypes.c_uint64 * MAX_RANKS)(*pointers)


@dataclass(frozen=True)
class _Plan:
    """How the arguments of one tuple of types become bytes."""

    convert: tuple[tuple[int, Callable[[Any], Any]], ...]
    """Index and conversion of each argument that `struct` does not take as it is."""
    pack_into: Callable[..., None]


class ParameterBlock:
    """The parameters of one kernel in memory: written by `pack`, read by the driver at launch.

    The layout comes from the cubin and the way each Python type is written is settled once per combination of
    types, so that a launch costs one `struct` call. Not safe among threads: the caller holds a lock from `pack`
    until the driver has taken the values.
    """

    def __init__(self, kernel: str, params: Sequence[tuple[int, int]]) -> None:
        """Make the block for parameters given as (offset, size in bytes), in order."""
        self._kernel = kernel
        self._params = tuple(params)
        self._memory = ctypes.create_string_buffer(max((offset + size for offset, size in params), default=1))
        base = ctypes.addressof(self._memory)
        self._pointers = (ctypes.c_void_p * max(len(params), 1))(*(base + offset for offset, _ in params))
        self._plans: dict[tuple[type, ...], _Plan] = {}
        self.address = ctypes.addressof(self._pointers)
        """Of the array of pointers that `cuLaunchKernelEx` takes."""

    def pack(self, args: tuple[Any, ...]) -> None:
        """Write the arguments.

        Raises:
            TypeError: their number, type or width does not fit the kernel's parameters.
            OverflowError: an int needs more than 64 bits, a float more than 32.
        """
        types = tuple(map(type, args))
        plan = self._plans.get(types)
        if plan is None:
            plan = self._plans[types] = self._plan(args)
        values = list(args)
        for index, convert in plan.convert:
            values[index] = convert(values[index])
        try:
            plan.pack_into(self._memory, 0, *values)
        except (struct.error, OverflowError) as error:
            raise OverflowError(
                f"{self._kernel}: an argument does not fit its parameter ({error}): an int is signed 64 bits wide,"
                " pass numpy.uint64 for more; a float is 32 bits wide, pass numpy.float64 for more."
            ) from error

    def packed(self) -> bytes:
        """The bytes as last written."""
        return self._memory.raw

    def _plan(self, args: tuple[Any, ...]) -> _Plan:
        if len(args) != len(self._params):
            raise TypeError(f"{self._kernel} takes {len(self._params)} arguments, got {len(args)}.")
        layout, converters, position = "<", [], 0
        for index, (arg, (offset, size)) in enumerate(zip(args, self._params, strict=True)):
            code, width, convert = self._code(index, arg)
            if width != size:
                hint = _HINTS.get(size, f"a ctypes structure or array of {size} bytes")
                raise TypeError(
                    f"{self._kernel}: argument {index} is {type(arg).__name__} ({width} bytes), but the parameter "
                    f"has {size} bytes. Pass {hint}."
                )
            layout += f"{offset - position}x{code}"
            if convert is not None:
                converters.append((index, convert))
            position = offset + size
        return _Plan(tuple(converters), struct.Struct(layout).pack_into)

    def _code(self, index: int, arg: Any) -> tuple[str, int, Callable[[Any], Any] | None]:
        """Format code, width in bytes, and conversion of one argument."""
        # numpy.float64 is a float and numpy.bool is none, so NumPy comes before Python's own types.
        if isinstance(arg, np.generic) and (arg.dtype.kind, arg.itemsize) in _NUMPY_CODES:
            return _NUMPY_CODES[arg.dtype.kind, arg.itemsize], arg.itemsize, None
        if isinstance(arg, torch.Tensor):
            return "Q", 8, self._pointer_of
        if isinstance(arg, bool):
            return "?", 1, None
        if isinstance(arg, int):
            return "q", 8, None
        if isinstance(arg, float):
            return "f", 4, None
        if isinstance(arg, _CTYPES):
            return f"{ctypes.sizeof(arg)}s", ctypes.sizeof(arg), bytes
        raise TypeError(
            f"{self._kernel}: argument {index} is a {type(arg).__name__}. Pass tensors, int (64 bits), float (32 "
            "bits), bool, NumPy scalars, or ctypes values, structures and arrays."
        )

    def _pointer_of(self, tensor: torch.Tensor) -> int:
        if not tensor.is_cuda:
            raise TypeError(f"{self._kernel}: got a tensor on {tensor.device}, a kernel reads CUDA tensors only.")
        return tensor.data_ptr()
