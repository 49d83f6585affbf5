"""What a rank can witness of a candidate's use of libraries: collectives, libraries that it loads, symbols of them.

The judge decides what that means (`pkb.judging.means`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

from pkb import symm

_DEVICES = ("/dev/nvidia", "anon_inode:")
"""Shared mappings of the CUDA driver, which say nothing of memory that ranks share."""


class Watch:
    """Sees what happens in this process from its making on; make one before a candidate is loaded."""

    def __init__(self) -> None:
        self._before = _mappings()
        self._symbols: dict[str, None] = {}
        # A hook cannot be taken out again, and it hears of native calls that leave no trace in a profile.
        sys.addaudithook(self._hear)

    def symbols(self) -> tuple[str, ...]:
        """Names of functions that were looked up in native libraries through ctypes, in order."""
        return tuple(self._symbols)

    def libraries(self) -> tuple[str, ...]:
        """File names of libraries that were loaded since, sorted."""
        new = _mappings() - self._before
        return tuple(sorted({Path(path).name for path, shared in new if not shared and ".so" in path}))

    def shares_memory(self) -> bool:
        """Whether this rank has mapped memory of its peers: symmetric memory, or a shared mapping of its own."""
        if symm.in_use() or symm_mem._group_name_to_store:
            return True
        new = _mappings() - self._before
        return any(shared and not path.startswith(_DEVICES) for path, shared in new)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "ctypes.dlsym":
            self._symbols[str(arguments[1])] = None


def collectives_since(begin_ns: int) -> Counter[str]:
    """How often each collective was called, as torch's own record has them: `gloo:all_reduce`, `nccl:all_gather`.

    It is kept below Python, and so knows the calls of every thread, of C++ code and of process groups that the
    candidate has made itself. Only the last few thousand calls are in it.

    Args:
        begin_ns: calls before this time (`time.time_ns()`) are left out.
    """
    entries = json.loads(_dump_fr_trace_json()).get("entries", [])
    return Counter(entry["profiling_name"] for entry in entries if entry["time_created_ns"] >= begin_ns)


def _mappings() -> set[tuple[str, bool]]:
    """File and whether it is shared, for every file that is mapped into this process."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5][0] != "[":
            found.add((fields[5], fields[1].endswith("s")))
    return found
