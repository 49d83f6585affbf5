"""Whether a candidate has replaced what its rank works with: functions of the judge, of clocks and of tensors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

_ROOMS = ("pkb.launch.", "pkb.problems._")
_CLOCKS = ("monotonic_ns", "monotonic", "perf_counter", "perf_counter_ns", "time", "time_ns", "sleep")
_TENSOR = ("clone", "cpu", "detach", "contiguous", "copy_", "to", "numel", "element_size", "view", "reshape")
_CUDA = ("Event", "synchronize", "current_stream", "_sleep")


def watch() -> Callable[[], str]:
    """Remember everything; the returned function names the first thing that is no longer what it was, or ''.

    It is a closure that looks nothing up by name, so that replacing its parts takes more than an assignment.
    """
    holders: list[tuple[str, Any, str, Any]] = []
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_ROOMS):
            holders += _members(name, module)
    for where, owner, names in (
        ("time", time, _CLOCKS),
        ("Tensor", torch.Tensor, _TENSOR),
        ("cuda", torch.cuda, _CUDA),
    ):
        holders += [(where, owner, name, getattr(owner, name)) for name in names if hasattr(owner, name)]
    codes = [(f"{w}.{n}", value, value.__code__) for w, _, n, value in holders if isinstance(value, FunctionType)]
    # Functions that are found by what a class or module stores, as a lookup in the judge's code finds them.
    stored = [(f"{w}.{n}", owner.__dict__, n, owner.__dict__.get(n)) for w, owner, n, _ in holders]

    def changed() -> str:
        for what, names, name, value in stored:
            if names.get(name) is not value:
                return what
        for what, function, code in codes:
            if function.__code__ is not code:
                return what
        return ""

    return changed


def _members(name: str, module: ModuleType) -> list[tuple[str, Any, str, Any]]:
    """Functions and classes of a module of ours, and functions of those classes."""
    found: list[tuple[str, Any, str, Any]] = []
    for key, value in vars(module).items():
        if isinstance(value, (FunctionType, type, ModuleType)):
            found.append((name, module, key, value))
        if isinstance(value, type) and value.__module__ == name:
            found += [(f"{name}.{key}", value, k, v) for k, v in vars(value).items() if isinstance(v, FunctionType)]
    return found
