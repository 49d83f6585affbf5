"""Finding processes in /proc: the children of one, and those that carry a mark in their environment."""

from __future__ import annotations

import os
from pathlib import Path

_MARK_VARIABLE = "PKB_NURSERY"


def children_of(pid: int) -> set[int]:
    """Direct children of a process, ended ones that nobody has waited for included."""
    children: set[int] = set()
    try:
        # Fast enough to catch processes that fork and end all the time; not every kernel has it.
        for task in Path(f"/proc/{pid}/task").iterdir():
            children.update(map(int, (task / "children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return _children_by_stat(pid)
    return children


def state_of(pid: int) -> str:
    """Letter of a process's state: R running, S sleeping, T stopped, D in the kernel; empty when it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def _children_by_stat(pid: int) -> set[int]:
    return {other for other in _all() if _stat(other)[1:2] == [str(pid)]}


def _stat(pid: int) -> list[str]:
    """State, parent and all that follows; empty when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The command name stands in parentheses and may hold spaces: count from behind it.
    return text.rpartition(")")[2].split()


def mark(token: str) -> dict[str, str]:
    """Environment that marks a process and everything that descends from it."""
    return {_MARK_VARIABLE: token}


def marked(token: str) -> set[int]:
    """Running processes that were started with a mark, or forked from one that was."""
    entry = f"{_MARK_VARIABLE}={token}".encode()
    found = set()
    for pid in _all():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if entry in environment.split(b"\0"):
            found.add(pid)
    return found


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
