"""Failures of building and launching CUDA code, and the lines of a compiler log that matter."""

from __future__ import annotations

from pkb.cuda.diagnostics import diagnostics


def relevant_lines(log: str, limit: int = 30) -> tuple[str, ...]:
    """The errors of a compiler's log, first error first, each with its source line; the log's end if it has none."""
    kept = [line for diagnostic in diagnostics(log) for line in diagnostic.lines]
    return tuple(kept[:limit] if kept else [line.rstrip() for line in log.splitlines() if line.strip()][-limit:])


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
