"""Intervals by resampling problems: what would another draw of problems of the same kind have given?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pkb.records.verdict import Interval

Values = NDArray[np.float64]
_RESAMPLES = 10_000
_SEED = 0
"""Fixed, so that a report can be made again to the last digit."""


@dataclass(frozen=True)
class Estimate:
    """A number and how far to trust it."""

    value: float
    interval: Interval | None = None
    """95 % percentile interval over problems; None if all problems give the same, which resampling cannot see past."""


def mean(values: Sequence[float]) -> Estimate:
    """Mean over problems; `values` has one number for each, at least one."""
    given = np.asarray(values, dtype=np.float64)
    return _estimate(float(given.mean()), _draws(len(given)) @ given / len(given))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Sum of numerators over sum of denominators, both one for each problem; some denominator is positive."""
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    draws = _draws(len(top))
    tops, bottoms = draws @ top, draws @ bottom
    # A draw without any weight says nothing about the ratio.
    return _estimate(float(top.sum() / bottom.sum()), tops[bottoms > 0] / bottoms[bottoms > 0])


def _estimate(value: float, resampled: Values) -> Estimate:
    if np.ptp(resampled) <= 1e-12 * max(1.0, abs(value)):
        return Estimate(value)
    low, high = (float(end) for end in np.percentile(resampled, [2.5, 97.5]))
    return Estimate(value, Interval(low=low, high=high))


@lru_cache(maxsize=8)
def _draws(num_problems: int) -> Values:
    """How often each problem is drawn, [resamples, num_problems]; the same for all scores, so that they are paired."""
    rng = np.random.default_rng(_SEED)
    counts = rng.multinomial(num_problems, [1.0 / num_problems] * num_problems, size=_RESAMPLES)
    return counts.astype(np.float64)
