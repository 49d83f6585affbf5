"""Timing of calls that write to their arguments: in segments, each on restored contents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pkb.launch.arguments import Filled
from pkb.launch.clock import Stream, spin_until
from pkb.launch.plan import BlockTime

_LEAD_NS = 1_000_000
"""From the moment at which the last rank is ready to the common start: time to learn of it."""

Agree = Callable[[int], int]


def time_segments(
    solution: Callable[..., Any],
    restore: Callable[[int], Filled],
    draws: Sequence[int],
    iterations: int,
    *,
    stream: Stream,
    agree: Agree,
) -> tuple[BlockTime, Filled, Any]:
    """Time calls in segments of one call for each draw; between segments the arguments are restored.

    All ranks begin a segment at the same moment, and its time is that of the slowest rank; the segments' times
    add up to the block's. Within a segment calls run back to back.

    Args:
        solution: what is called.
        restore: fresh contents for a draw, in memory that no other draw uses.
        draws: draws to rotate over.
        iterations: number of calls, at least 1.
        stream: what the calls run on.
        agree: the largest of all ranks' numbers.

    Returns:
        The block's time, and arguments and result of the last call.
    """
    begin_ns, total_ns, device_us = 0, 0, 0.0
    filled, result = None, None
    for first in range(0, iterations, len(draws)):
        batch = [restore(draw) for draw in draws[: iterations - first]]
        stream.synchronize()
        start_ns = agree(time.monotonic_ns() + _LEAD_NS)
        spin_until(start_ns)
        stream.start()
        for filled in batch:
            result = solution(*filled.arguments)
        stream.stop()
        stream.synchronize()
        total_ns += agree(time.monotonic_ns()) - start_ns
        device_us += stream.elapsed_us() or 0.0
        begin_ns = begin_ns or start_ns
    assert filled is not None, "a block has at least one iteration"
    has_device_clock = stream.elapsed_us() is not None
    timed = BlockTime(device_us=device_us if has_device_clock else None, start_ns=begin_ns, end_ns=begin_ns + total_ns)
    return timed, filled, result
