"""From the way a rank failed to the status of its candidate."""

from __future__ import annotations

import signal
import sysconfig
from pathlib import Path

from pkb.launch.plan import LOST_CHANNEL
from pkb.launch.ranks import RankFailure
from pkb.records.verdict import Cause, Failure, Phase, RankState, Status

_MAX_LOG_CHARS = 12_000

_FAULT_CAUSES = {
    "exception": Cause.EXCEPTION,
    "exit": Cause.EXIT,
    "out_of_memory": Cause.OUT_OF_MEMORY,
    "syntax": Cause.SYNTAX,
    "import": Cause.IMPORT,
    "compile": Cause.COMPILE,
    "no_solution": Cause.NO_SOLUTION,
    "arity": Cause.ARITY,
}
_BUILD_FAULTS = {"syntax", "import", "compile", "no_solution", "arity"}
# The library of Python itself, everything installed, and this package.
_LIBRARIES = (
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + "/",
)


def failure_of(error: RankFailure, phase: Phase) -> tuple[Status, Failure]:
    """Status and failure of a candidate whose rank failed in a phase."""
    building = phase is Phase.BUILD
    if error.kind == "fault" and error.fault is not None:
        if error.fault.kind == "tampered":
            detail = f"rank {error.rank}: {error.fault.text}"
            return Status.REFUSED, Failure(phase=phase, cause=Cause.FORBIDDEN, detail=detail)
        status = Status.BUILD_FAILED if building or error.fault.kind in _BUILD_FAULTS else Status.CRASHED
        cause = _FAULT_CAUSES[error.fault.kind]
        detail = f"rank {error.rank}: {error.fault.text}{_others(error)}"
    elif error.kind == "died":
        status = Status.BUILD_FAILED if building else Status.CRASHED
        code = error.exit_code if error.exit_code is not None else 0
        cause = Cause.SIGNAL if code < 0 else Cause.EXIT
        detail = f"rank {error.rank} {_death(error)}{_others(error)}"
    elif error.kind == "deadline":
        status = Status.BUILD_FAILED if building else Status.HUNG
        cause = Cause.DEADLOCK
        detail = f"{error.text}. " + " ".join(_where(state) for state in error.states)
    else:
        status, cause = Status.REFUSED, Cause.FORBIDDEN
        detail = f"rank {error.rank} wrote to the judge's channel: {error.text}"
    log = "\n".join(part for part in (error.fault.log if error.fault else "", error.output) if part)
    return status, Failure(phase=phase, cause=cause, detail=detail, ranks=error.states, log=log[-_MAX_LOG_CHARS:])


def _death(error: RankFailure) -> str:
    """How a rank ended."""
    if error.exit_code is None or error.exit_code == LOST_CHANNEL:
        return "closed its channel to the judge: leave descriptors alone that the solution has not opened"
    state = next(state for state in error.states if state.rank == error.rank)
    hint = "; the system does that when memory runs out" if error.exit_code == -signal.SIGKILL else ""
    return f"{state.state}{_place(state)}{hint}"


def _others(error: RankFailure) -> str:
    """What the ranks did that did not fail."""
    waiting = [s for s in error.states if s.rank != error.rank and s.state.startswith("inside")]
    if not waiting:
        return ""
    return "; meanwhile " + ", ".join(f"rank {s.rank} was {s.state}{_place(s)}" for s in waiting)


def _where(state: RankState) -> str:
    idle = state.state.startswith(("waiting for the judge", "returned from all"))
    return f"Rank {state.rank}: {state.state}{'' if idle else _place(state)}."


def _place(state: RankState) -> str:
    """The innermost line of the candidate's own, and what it has called there."""
    called = ""
    for frame in state.stack:
        where, _, name = frame.rpartition(" ")
        if not where.startswith(_LIBRARIES):
            return f" at {where} ({name}{f', in {called}' if called else ''})"
        if not name.startswith(("_", "<")) and name != "wrapper":
            called = name
    return f" at {state.stack[0]}" if state.stack else ""
