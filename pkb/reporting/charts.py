"""Geometry of the charts: lines and marks in the coordinates of an SVG; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pkb.reporting import words
from pkb.reporting.scores import Results, chances, is_timed
from pkb.reporting.sheet import Sheet

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 46
_SPEEDUP_TICKS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_LARGEST_P = 4.0
_P_STEP = 0.05


@dataclass(frozen=True)
class Tick:
    """A mark of an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """One curve."""

    run: int
    """Number of its run: sets color and dashes."""
    label: str
    path: str
    """The `d` of an SVG path."""
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """One point."""

    run: int
    x: float
    y: float
    problem: str
    label: str


@dataclass(frozen=True)
class Chart:
    """Axes and what is drawn between them."""

    title: str
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def share_by_threshold(sheets: Sequence[Sheet]) -> Chart:
    """fast_p as p grows, at k = 1 (faint) and at all attempts."""
    steps = [round(_P_STEP * step, 2) for step in range(int(_LARGEST_P / _P_STEP) + 1)]
    lines = []
    for number, sheet in enumerate(sheets):
        results = sheet.strict
        reach = steps if is_timed(results) else steps[:1]
        for k in dict.fromkeys((1, sheet.run.attempts)):
            shown = [(_x(p / _LARGEST_P), _y(_share(results, p, k))) for p in reach]
            faint = k == 1 and sheet.run.attempts > 1
            lines.append(Line(number, f"{sheet.run.name}, k = {k}", _path(shown), faint=faint))
    return Chart(
        title="Share of problems by speedup",
        x_title="p: more than p times as fast as the baseline",
        y_title="fast_p@k",
        x_ticks=tuple(Tick(_x(p / _LARGEST_P), words.threshold(p)) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)),
        y_ticks=_share_ticks(),
        lines=tuple(lines),
    )


def share_by_attempts(sheets: Sequence[Sheet]) -> Chart:
    """fast_1@k as k grows; fast_0@k (faint) beside it."""
    most = max(sheet.run.attempts for sheet in sheets)
    lines = []
    for number, sheet in enumerate(sheets):
        for p in (0.0, 1.0):
            if p == 0 or is_timed(sheet.strict):
                shown = [(_x(k / most), _y(_share(sheet.strict, p, k))) for k in range(1, sheet.run.attempts + 1)]
                lines.append(Line(number, f"{sheet.run.name}, fast_{p:g}", _path(shown), faint=p == 0))
    return Chart(
        title="Share of problems by attempts",
        x_title="k: attempts at a problem",
        y_title="fast_1@k, and fast_0@k (faint)",
        x_ticks=tuple(Tick(_x(k / most), str(k)) for k in range(1, most + 1) if k in (1, most) or most <= 12),
        y_ticks=_share_ticks(),
        lines=tuple(lines),
    )


def speedup_by_light(sheets: Sequence[Sheet]) -> Chart | None:
    """Speedup and % of speed of light of the best solved attempt at each problem; None without any such point."""
    found = []
    for number, sheet in enumerate(sheets):
        for problem in sheet.tries:
            best = sheet.best(problem)
            turn = best.turn if best is not None else None
            if best is None or turn is None or turn.verdict is None or not turn.verdict.solved:
                continue
            timing = turn.verdict.timings[-1] if turn.verdict.timings else None
            if timing is not None and timing.speedup is not None and timing.sol_percent is not None:
                found.append((number, problem, timing.speedup, timing.sol_percent, sheet.run.name))
    if not found:
        return None
    low = max([tick for tick in _SPEEDUP_TICKS if tick <= min(0.5, *(f[2] for f in found))], default=0.05)
    high = min([tick for tick in _SPEEDUP_TICKS if tick >= max(2.0, *(f[2] for f in found))], default=64.0)

    def x_of(speedup: float) -> float:
        return _x(math.log(min(max(speedup, low), high) / low) / math.log(high / low))

    return Chart(
        title="Best solved attempt at each problem",
        x_title="speedup over the baseline",
        y_title="% of speed of light",
        x_ticks=tuple(Tick(x_of(tick), f"{tick:g}") for tick in _SPEEDUP_TICKS if low <= tick <= high),
        y_ticks=_share_ticks(),
        marks=tuple(
            Mark(
                number, x_of(speedup), _y(percent / 100), problem, f"{problem}, {run}: {speedup:.2f}x, {percent:.0f} %"
            )
            for number, problem, speedup, percent, run in found
        ),
    )


def _share(results: Results, p: float, k: int) -> float:
    values = chances(results, p, k)
    return sum(values) / len(values)


def _share_ticks() -> tuple[Tick, ...]:
    return tuple(Tick(_y(share / 100), f"{share}") for share in (0, 25, 50, 75, 100))


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        # A single point shows as a short dash.
        x, y = points[0]
        points = [(x - 4, y), (x + 4, y)]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _x(part: float) -> float:
    return round(_LEFT + part * (WIDTH - _LEFT - _RIGHT), 1)


def _y(part: float) -> float:
    return round(HEIGHT - _BOTTOM - min(part, 1.0) * (HEIGHT - _TOP - _BOTTOM), 1)
