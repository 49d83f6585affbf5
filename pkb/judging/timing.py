"""Timing: baseline and candidate alternate block by block, the slowest rank counts, two clocks must agree."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pkb.judging.schedule import DrawSpec, redraws
from pkb.launch import wire
from pkb.launch.plan import BlockAnswer, TakeResult, TimeBlock
from pkb.launch.ranks import RankSet
from pkb.problems._spec import Problem
from pkb.records.verdict import Interval

_BLOCK_US = 20_000.0
"""Least duration of a block, so that the start and the end of one do not count."""
_MAX_REDRAW_US = 100_000.0
"""What drawing the arguments of a block may take; where draws are slow, blocks are shorter."""
_MIN_ITERATIONS = 4
_SHORTEST = 0.9
"""A block has at least this part of the iterations that it could have: nobody can count on its end."""
_MAX_WARM_UP_BLOCKS = 6
_STABLE = 0.05
_START_LEAD_NS = 3_000_000
"""Time for the start signal to reach every rank before the moment that it names."""
_LATENCY_US = 1000.0
"""What an answer may take to arrive where no baseline tells."""
_LATENCY_FACTOR = 1.5
_CLOCK_RATIO = 1.25
_CLOCK_SLACK_US = 2000.0
_NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Block:
    """One block on all ranks."""

    iterations: int
    ranks_us: float
    """From the common start to the end of the slowest rank, by the ranks' own clocks."""
    parent_us: float
    """From the common start to the last answer, by the judge's clock."""
    picked: DrawSpec
    """The call whose result `Blocks.picked_results` fetches."""

    @property
    def time_us(self) -> float:
        """Time of an iteration by the ranks' own clocks."""
        return self.ranks_us / self.iterations

    @property
    def latency_us(self) -> float:
        """What the judge's clock says more than the ranks'."""
        return self.parent_us - self.ranks_us


class Blocks:
    """Runs timed blocks on one set of ranks, every call on arguments that were drawn for it alone."""

    def __init__(
        self, ranks: RankSet, problem: Problem, size: str, secret: bytes, *, max_calls: int, deadline_s: float
    ) -> None:
        """Blocks of at most `max_calls` calls, drawn from `secret`, on ranks that must answer in `deadline_s`."""
        self._ranks = ranks
        self._problem = problem
        self._size = size
        self._max_calls = max_calls
        self._deadline_s = deadline_s
        self._secret = secret
        self._chance = random.Random(secret)
        self._next_index = 0
        self._redraw_us = 0.0
        self.iterations = 1
        """Most iterations of a block, chosen by `warm_up`."""

    def warm_up(self) -> None:
        """Run blocks until two in a row agree, and choose the iterations so that a block is long enough."""
        last = math.inf
        for _ in range(_MAX_WARM_UP_BLOCKS):
            now = self.run().time_us
            most = self._most_iterations()
            wanted = max(1, min(most, math.ceil(1.1 * _BLOCK_US / now)))
            long_enough = self.iterations * now >= 0.8 * _BLOCK_US or self.iterations == most
            if long_enough and abs(now - last) <= _STABLE * now:
                return
            last = now if long_enough else math.inf
            self.iterations = wanted

    def run(self) -> Block:
        """Draw arguments and run one block on them.

        Raises:
            RankFailure: the candidate failed or did not end in time.
        """
        count = self._chance.randint(math.ceil(_SHORTEST * self.iterations), self.iterations)
        first_index, self._next_index = self._next_index, self._next_index + count
        world_size = self._ranks.layout.world_size
        commands = redraws(self._problem, self._secret, self._size, first_index, count, world_size)
        begin = time.perf_counter()
        self._ranks.request(commands, self._deadline_s)
        self._redraw_us = (time.perf_counter() - begin) * 1e6 / count
        pick = self._chance.randrange(count)
        start_ns = time.monotonic_ns() + _START_LEAD_NS
        command = TimeBlock(iterations=count, pick=pick, start_ns=start_ns)
        messages = self._ranks.request(command, self._deadline_s)
        end_ns = time.monotonic_ns()
        times = [BlockAnswer.model_validate(message.header).time for message in messages]
        return Block(
            iterations=count,
            ranks_us=(max(t.end_ns for t in times) - start_ns) / 1e3,
            parent_us=(end_ns - start_ns) / 1e3,
            picked=DrawSpec(self._size, first_index + pick, exact=False),
        )

    def picked_results(self) -> list[wire.Message]:
        """What every rank has kept of the last block.

        Raises:
            RankFailure: the candidate failed or did not answer in time.
        """
        return self._ranks.request(TakeResult(), self._deadline_s)

    def _most_iterations(self) -> int:
        by_time = max(_MIN_ITERATIONS, int(_MAX_REDRAW_US / self._redraw_us))
        return min(self._max_calls, by_time)


def trusted_times_us(blocks: Sequence[Block], baseline: Sequence[Block]) -> list[float]:
    """Time of an iteration in each block: that of the ranks, or the judge's own where that says much more.

    The baseline's ranks, which nobody could tamper with, tell how long an answer takes to arrive.
    """
    latency_us = allowed_latency_us(baseline)
    return [max(b.ranks_us, b.parent_us - latency_us) / b.iterations for b in blocks]


def allowed_latency_us(baseline: Sequence[Block]) -> float:
    """What the judge's clock may say more than the ranks' in a block."""
    if not baseline:
        return _LATENCY_US
    return _LATENCY_FACTOR * float(np.median([b.latency_us for b in baseline]))


def clocks_disagree(blocks: Sequence[Block], baseline: Sequence[Block], size: str) -> str:
    """Why the judge's clock contradicts the ranks' times; empty when it does not."""
    ranks_us = float(np.median([b.ranks_us for b in blocks]))
    parent_us = float(np.median([b.parent_us for b in blocks])) - allowed_latency_us(baseline)
    if parent_us <= _CLOCK_RATIO * ranks_us or parent_us - ranks_us <= _CLOCK_SLACK_US:
        return ""
    return (
        f"the ranks report blocks of {ranks_us:.0f} us at size {size}, which took {parent_us:.0f} us by the judge's"
        " own clock: clocks were tampered with, or work is done outside of the timed window"
    )


def speedup_interval(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Interval:
    """95 % percentile bootstrap interval of median(baseline) / median(candidate), rounds resampled in pairs."""
    baseline, candidate = np.asarray(baseline_us), np.asarray(candidate_us)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(baseline), size=(_NUM_RESAMPLES, len(baseline)))
    ratios = np.median(baseline[picks], axis=1) / np.median(candidate[picks], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(low=float(low), high=float(high))
