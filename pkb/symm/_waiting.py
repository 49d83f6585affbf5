"""How long a rank waits for its peers, how it spins meanwhile, and what is run when it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pkb.records.errors import UsageError

_NUM_YIELDS = 64
_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 1e-3

_timeout_s = 300.0
_after_barrier: Callable[[], None] | None = None


def set_timeout(seconds: float) -> None:
    """Set how long this rank's waits may last from now on (300 s at first).

    On the CPU a wait that lasts longer raises TimeoutError. On CUDA torch's kernel prints the rank and the
    channel and traps, which ends the process's CUDA context; work that is enqueued already keeps its old
    limit.

    Raises:
        UsageError: `seconds` is not positive.
    """
    global _timeout_s
    if not seconds > 0:
        raise UsageError(f"set_timeout: expected a positive number of seconds, got {seconds!r}.")
    _timeout_s = float(seconds)


def timeout_s() -> float:
    """The limit that set_timeout chose."""
    return _timeout_s


def set_after_barrier(callback: Callable[[], None] | None) -> None:
    """Run `callback` on this rank right after every `barrier()` and `wait()` of every handle; None ends that.

    For judges: random delays put there let peers run ahead, which makes a missing barrier visible. On the
    CPU the callback runs after the rank left the barrier and holds it up; on CUDA it runs on the host after
    the barrier was enqueued and may enqueue device work on the current stream. What it raises leaves
    `barrier()` or `wait()`.
    """
    global _after_barrier
    _after_barrier = callback


def call_after_barrier() -> None:
    """Run the callback of set_after_barrier, if there is one."""
    if _after_barrier is not None:
        _after_barrier()


def spin_until(arrived: Callable[[], bool], late: Callable[[], str]) -> None:
    """Return once `arrived()` is true.

    Args:
        arrived: looks at shared memory; called again and again.
        late: says who is missing; called once, when the limit is over.

    Raises:
        TimeoutError: with the text of `late()`.
    """
    for _ in range(_NUM_YIELDS):
        if arrived():
            return
        os.sched_yield()
    deadline = time.monotonic() + _timeout_s
    pause_s = _FIRST_PAUSE_S
    # Ranks may outnumber cores: a spin without sleep would take the core from the rank it waits for.
    while not arrived():
        if time.monotonic() >= deadline:
            raise TimeoutError(late())
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
