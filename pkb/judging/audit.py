"""Which times of a candidate are not credible."""

from __future__ import annotations

from pkb.records.verdict import Timing


def too_fast(timing: Timing) -> str:
    """Why a time is not credible; empty when it is."""
    percent = timing.sol_percent
    if percent is None or percent <= 100.0:
        return ""
    return (
        f"{timing.candidate_us:.2f} us at size {timing.size} is {percent:.0f} % of speed of light"
        f" ({timing.sol_us:.2f} us, bound by {timing.sol_bound}): faster than the hardware allows"
    )
