"""What a profile of the candidate and the speed of light say about it."""

from __future__ import annotations

from collections.abc import Sequence

from pkb.launch.plan import LIBRARY_OPERATOR, Event
from pkb.records.verdict import Timing


def library_calls(events: Sequence[Event]) -> tuple[str, ...]:
    """Names of library collectives among the events, in order of frequency."""
    return tuple(event.name for event in events if LIBRARY_OPERATOR.search(event.name))


def mechanisms(events: Sequence[Event]) -> tuple[str, ...]:
    """Means of moving data that the events show."""
    seen = []
    if library_calls(events):
        seen.append("library collective")
    device = [event.name for event in events if event.on_device]
    if any(name.startswith(("Memcpy PtoP", "Memcpy DtoD", "Memcpy Peer")) for name in device):
        seen.append("copy engine")
    if any(not name.startswith(("Memcpy", "Memset")) and not LIBRARY_OPERATOR.search(name) for name in device):
        seen.append("kernels")
    return tuple(seen)


def too_fast(timing: Timing) -> str:
    """Why a time is not credible; empty when it is."""
    percent = timing.sol_percent
    if percent is None or percent <= 100.0:
        return ""
    return (
        f"{timing.candidate_us:.2f} us at size {timing.size} is {percent:.0f} % of speed of light"
        f" ({timing.sol_us:.2f} us, bound by {timing.sol_bound}): faster than the hardware allows"
    )
