"""Numbers and names as reports print them."""

from __future__ import annotations

from collections.abc import Callable

from pkb.reporting.bootstrap import Estimate

NONE = "-"
"""What stands where there is no number."""


def percent(share: float) -> str:
    """`32 %`; one digit more below 10 %."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def times(speedup: float | None) -> str:
    """`1.83x`."""
    return NONE if speedup is None else f"{speedup:.2f}x"


def points(difference: float) -> str:
    """`+5.7 pp`: a difference of shares in percentage points."""
    return f"{100 * difference:+.1f} pp"


def interval(found: Estimate | None, form: Callable[[float], str]) -> str:
    """`22 to 42 %`; empty where there is none."""
    if found is None or found.interval is None:
        return ""
    low, high = form(found.interval.low), form(found.interval.high)
    _, _, unit = high.partition(" ")
    # A unit that both ends share is said once.
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def microseconds(time_us: float | None) -> str:
    """`123.4 us`, or in ms from 10 ms on."""
    if time_us is None:
        return NONE
    return f"{time_us / 1000:.1f} ms" if time_us >= 10_000 else f"{time_us:.1f} us"


def count(number: float | None) -> str:
    """`12,345`."""
    return NONE if number is None else f"{number:,.0f}"


def dollars(amount: float | None) -> str:
    """`$0.42`."""
    return NONE if amount is None else f"${amount:,.2f}"


def threshold(p: float) -> str:
    """`1`, `1.5`."""
    return f"{p:g}"
