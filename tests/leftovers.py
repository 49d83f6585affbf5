"""What ranks could leave behind: processes, files, descriptors, threads; and the assertion that nothing is."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SETTLE_S = 5.0


@dataclass(frozen=True)
class Belongings:
    """What this process and those that it has started hold."""

    processes: frozenset[int]
    """Descendants, and whatever carries the mark of ranks that this process has started."""
    folders: frozenset[str]
    shared: frozenset[str]
    descriptors: tuple[tuple[str, int], ...]
    """Kinds of open descriptors of this process, and how many of each."""
    threads: frozenset[str]


def marked_by(judge_pid: int) -> set[int]:
    """Processes that carry the mark of ranks of a judge, wherever they have gone."""
    start = f"PKB_NURSERY={judge_pid}-".encode()
    found = set()
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if any(entry.startswith(start) for entry in environment.split(b"\0")):
            found.add(pid)
    return found


def rank_folders(directory: str | Path, judge_pid: int) -> set[str]:
    """Folders of a judge's rank sets in a directory for temporary files."""
    return {entry.name for entry in Path(directory).iterdir() if entry.name.startswith(f"pkb-ranks-{judge_pid}-")}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that what runs inside leaves no process, file, descriptor or thread behind."""
    before = _belongings()
    yield
    deadline = time.monotonic() + _SETTLE_S
    while (left := _new(before, _belongings())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"


def _new(before: Belongings, after: Belongings) -> dict[str, object]:
    """Everything that was not there before, by kind."""
    found = {
        "processes": {pid: _command(pid) for pid in after.processes - before.processes},
        "folders": after.folders - before.folders,
        "shared": _unheld(after.shared - before.shared),
        "descriptors": dict(Counter(dict(after.descriptors)) - Counter(dict(before.descriptors))),
        "threads": after.threads - before.threads,
    }
    return {kind: what for kind, what in found.items() if what}


def _unheld(names: frozenset[str]) -> set[str]:
    """Files in /dev/shm without those that a running process has mapped: other programs work on this machine."""
    left = set(names)
    for pid in _pids() if left else ():
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        left = {name for name in left if f"/dev/shm/{name}" not in maps}
    return left


def _belongings() -> Belongings:
    return Belongings(
        processes=frozenset(_descendants(os.getpid()) | marked_by(os.getpid())),
        folders=frozenset(rank_folders(tempfile.gettempdir(), os.getpid())),
        shared=frozenset(os.listdir("/dev/shm")),
        descriptors=tuple(sorted(Counter(_descriptors()).items())),
        threads=frozenset(thread.name for thread in threading.enumerate()),
    )


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        yield target.partition(":[")[0]


def _descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for other in _pids():
        try:
            stat = Path(f"/proc/{other}/stat").read_text()
        except OSError:
            continue
        parents[other] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
