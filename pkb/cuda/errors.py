"""Failures of building and launching CUDA code, and the lines of a compiler log that matter."""

from __future__ import annotations

import re

_ERROR_LINE = re.compile(
    r"\b(?:error|fatal)\b\s*[:#]|\bfatal error\b|undefined (?:reference|symbol)|collect2:|ld returned",
    re.IGNORECASE,
)
_NEW_DIAGNOSTIC = re.compile(r"\b(?:warning|remark|note)\b\s*[:#]|errors? detected|^(?:FAILED|ninja):|^ptxas info")
_CONTEXT_LINES = 3


def relevant_lines(log: str, limit: int = 30) -> tuple[str, ...]:
    """The error lines of a compiler log, each with the source lines under it; the log's end if it has none."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    kept: list[str] = []
    context_left = 0
    for line in lines:
        if _ERROR_LINE.search(line):
            kept.append(line)
            context_left = _CONTEXT_LINES
        elif _NEW_DIAGNOSTIC.search(line):
            context_left = 0
        elif context_left and line[0].isspace():
            kept.append(line)
            context_left -= 1
    return tuple(kept[:limit] if kept else lines[-limit:])


class CompileError(Exception):
    """A source that does not compile; the message holds the lines that matter.

    Attributes:
        what: name of what was compiled.
        log: everything the compiler wrote.
        lines: the lines of the log that matter.
    """

    def __init__(self, what: str, log: str) -> None:
        super().__init__(what, log)
        self.what = what
        self.log = log
        self.lines = relevant_lines(log)

    def __str__(self) -> str:
        return "\n".join((f"{self.what} does not compile:", *self.lines))


class LaunchError(Exception):
    """The CUDA driver refused to load or launch a kernel."""
