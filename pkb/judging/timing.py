"""Timing: baseline and candidate alternate block by block, the slowest rank counts, medians and an interval."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pkb.launch import wire
from pkb.launch.plan import BlockAnswer, TimeBlock
from pkb.launch.ranks import RankSet
from pkb.records.verdict import Interval

_BLOCK_US = 20_000.0
"""Least duration of a block, so that the start and the end of one do not count."""
_MAX_ITERATIONS = 20_000
_MAX_WARM_UP_BLOCKS = 6
_STABLE = 0.05
_START_LEAD_NS = 3_000_000
"""Time for the start signal to reach every rank before the moment that it names."""
_NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Block:
    """One block on all ranks."""

    time_us: float
    """Time of an iteration: from the common start to the end of the slowest rank, over the iterations."""
    device_us: float | None
    """The same by the slowest rank's events; None on the CPU."""
    parent_s: float
    """The whole block by the judge's own clock, start signal and answers included."""
    last_draw: int
    """Draw of the last iteration, whose result is in the messages if it was asked for."""
    messages: tuple[wire.Message, ...]


class Blocks:
    """Runs timed blocks on one set of ranks."""

    def __init__(self, ranks: RankSet, draws: Sequence[int], *, deadline_s: float) -> None:
        self._ranks = ranks
        self._draws = tuple(draws)
        self._deadline_s = deadline_s
        self._count = 0
        self.iterations = 1
        """Iterations of a block, chosen by `warm_up`."""

    def warm_up(self) -> None:
        """Run blocks until two in a row agree, and choose the iterations so that a block is long enough."""
        last = math.inf
        for _ in range(_MAX_WARM_UP_BLOCKS):
            now = self.run().time_us
            wanted = max(1, min(_MAX_ITERATIONS, math.ceil(1.1 * _BLOCK_US / now)))
            long_enough = self.iterations * now >= 0.8 * _BLOCK_US or self.iterations == _MAX_ITERATIONS
            if long_enough and abs(now - last) <= _STABLE * now:
                return
            last = now if long_enough else math.inf
            self.iterations = wanted

    def run(self, *, iterations: int | None = None, return_result: bool = False, restore_only: bool = False) -> Block:
        """Run one block; the draw that comes first changes from block to block.

        Raises:
            RankFailure: the candidate failed or did not end in time.
        """
        count = iterations or self.iterations
        first = self._count % len(self._draws)
        self._count += 1
        begin = time.perf_counter()
        start_ns = time.monotonic_ns() + _START_LEAD_NS
        command = TimeBlock(
            draws=self._draws,
            first=first,
            iterations=count,
            start_ns=start_ns,
            return_result=return_result,
            restore_only=restore_only,
        )
        messages = tuple(self._ranks.request(command, self._deadline_s))
        parent_s = time.perf_counter() - begin
        times = [BlockAnswer.model_validate(message.header).time for message in messages]
        device = [t.device_us for t in times if t.device_us is not None]
        return Block(
            time_us=(max(t.end_ns for t in times) - min(t.start_ns for t in times)) / 1e3 / count,
            device_us=max(device) / count if device else None,
            parent_s=parent_s,
            last_draw=self._draws[(first + count - 1) % len(self._draws)],
            messages=messages,
        )

    def parent_us(self, repeats: int = 3, *, restores: bool = False) -> float | None:
        """Time of an iteration by the judge's own clock: (t(2n) - t(n)) / n, the median of a few; None if noise.

        Args:
            repeats: how many differences to take.
            restores: arguments are restored between calls; what that takes is measured alone and taken off.
        """
        n = self.iterations

        def more_s(restore_only: bool) -> float:
            twice, once = (self.run(iterations=k * n, restore_only=restore_only).parent_s for k in (2, 1))
            return twice - once

        differences = [more_s(False) - (more_s(True) if restores else 0.0) for _ in range(repeats)]
        value = float(np.median(differences)) * 1e6 / n
        return value if value > 0 else None


def speedup_interval(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Interval:
    """95 % percentile bootstrap interval of median(baseline) / median(candidate), rounds resampled in pairs."""
    baseline, candidate = np.asarray(baseline_us), np.asarray(candidate_us)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(baseline), size=(_NUM_RESAMPLES, len(baseline)))
    ratios = np.median(baseline[picks], axis=1) / np.median(candidate[picks], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(low=float(low), high=float(high))
