"""Scores of a run: fast_p@k, speedups, tokens and cost. Formulas and sources: docs/scores.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pkb.records.attempt import Attempt, Usage
from pkb.reporting import bootstrap
from pkb.reporting.bootstrap import Estimate
from pkb.reporting.failures import Kind, kind_of

THRESHOLDS = (0.0, 1.0, 1.5, 2.0)
"""The p of fast_p that tables show."""


class Column(StrEnum):
    """What counts as correct."""

    STRICT = "strict"
    """Solved: correct without library collectives."""
    LENIENT = "lenient"
    """Correct by any means."""


@dataclass(frozen=True)
class Result:
    """A scored attempt as a score sees it."""

    correct: bool
    speedup: float | None = None
    """Over the baseline; None if it is not correct or was not timed."""

    def beats(self, p: float) -> bool:
        """Correct and, for p > 0, faster than p times the baseline."""
        return self.correct and (p == 0 or (self.speedup is not None and self.speedup > p))


Results = Mapping[str, Sequence[Result]]
"""Scored attempts of each problem that was asked, by its id; problems without any are there, too."""


def result_of(attempt: Attempt, column: Column) -> Result | None:
    """What an attempt counts as; None if it cannot be scored."""
    if kind_of(attempt) is Kind.NOT_SCORED:
        return None
    turn = attempt.best
    if turn is None or turn.verdict is None or not turn.is_correct:
        return Result(correct=False)
    if column is Column.STRICT:
        return Result(correct=True, speedup=turn.speedup) if turn.verdict.solved else Result(correct=False)
    speedups = (t.speedup for t in attempt.turns if t.is_correct and t.speedup is not None)
    return Result(correct=True, speedup=max(speedups, default=None))


def results_of(attempts: Mapping[str, Sequence[Attempt]], column: Column) -> Results:
    """Scored attempts of each problem."""
    return {
        problem: tuple(result for attempt in tries if (result := result_of(attempt, column)) is not None)
        for problem, tries in attempts.items()
    }


def is_timed(results: Results) -> bool:
    """Speedups are known: some correct attempt has one, or nothing is correct."""
    correct = [result for tries in results.values() for result in tries if result.correct]
    return not correct or any(result.speedup is not None for result in correct)


def any_of_k(num_attempts: int, num_good: int, k: int) -> float:
    """Chance that at least one of k attempts, drawn without replacement from those made, is good.

    With fewer than k attempts all of them are drawn, which is a lower bound; with none it is 0.
    """
    if not 0 <= num_good <= num_attempts or k < 1:
        raise ValueError(f"{num_good} good of {num_attempts} attempts at k = {k}")
    if num_attempts == 0:
        return 0.0
    k = min(k, num_attempts)
    return 1.0 - math.comb(num_attempts - num_good, k) / math.comb(num_attempts, k)


def fast_p(results: Results, p: float, k: int) -> Estimate:
    """Share of all problems with at least one of k attempts correct and more than p times as fast as the baseline."""
    return bootstrap.mean(chances(results, p, k))


def fast_p_difference(ours: Results, theirs: Results, p: float, k: int) -> Estimate | None:
    """fast_p@k of one run minus that of another, over the problems that both were asked; None if there are none."""
    common = [problem for problem in ours if problem in theirs]
    if not common:
        return None
    left = chances({problem: ours[problem] for problem in common}, p, k)
    right = chances({problem: theirs[problem] for problem in common}, p, k)
    return bootstrap.mean([a - b for a, b in zip(left, right, strict=True)])


def geomean_speedup(results: Results, k: int) -> Estimate | None:
    """Geometric mean, over the problems that are solved, of the speedup of the fastest of k attempts.

    None if no attempt is correct and timed. With fewer attempts than were made, a problem weighs as much as it is
    likely to be solved by k of them.
    """
    logs, chances = zip(*(_log_of_best(tries, k) for tries in results.values()), strict=True)
    return None if not sum(chances) else _exp(bootstrap.ratio(logs, chances))


def geomean_speedup_or_one(results: Results, k: int) -> Estimate:
    """The same over all problems, those that are not solved counting as 1: the baseline is used instead."""
    return _exp(bootstrap.mean([_log_of_best(tries, k)[0] for tries in results.values()]))


@dataclass(frozen=True)
class Spending:
    """Tokens and price of a run, in all and for each solved problem."""

    total: Usage
    """Of all attempts, scored or not."""
    num_solved: int
    """Problems that some attempt solved."""

    def per_solved(self, what: Callable[[Usage], float | None]) -> float | None:
        """An amount for each solved problem; None if none is solved or the amount is unknown."""
        amount = what(self.total)
        return None if amount is None or self.num_solved == 0 else amount / self.num_solved


def spending(attempts: Mapping[str, Sequence[Attempt]], results: Results) -> Spending:
    """What a run took, with `results` saying what is solved."""
    total = Usage(cost_usd=0.0)
    for tries in attempts.values():
        for attempt in tries:
            total = total + attempt.usage
    return Spending(total, sum(any(result.correct for result in tries) for tries in results.values()))


def chances(results: Results, p: float, k: int) -> list[float]:
    """For each problem, the chance that one of k attempts is correct and beats p; `fast_p` is their mean."""
    return [any_of_k(len(tries), sum(result.beats(p) for result in tries), k) for tries in results.values()]


def _log_of_best(tries: Sequence[Result], k: int) -> tuple[float, float]:
    """Expected log speedup of the fastest correct one of k attempts, 0 if there is none; chance that there is one.

    The i-th fastest is the best of k drawn from n if it is drawn and the rest come from the n - i slower ones: they
    can be drawn in C(n - i, k - 1) of C(n, k) ways. Failures are slower than every correct attempt.
    """
    speedups = sorted((r.speedup for r in tries if r.correct and r.speedup is not None), reverse=True)
    num, k = len(tries), min(k, len(tries))
    if not speedups:
        return 0.0, 0.0
    ways = [math.comb(num - place, k - 1) / math.comb(num, k) for place in range(1, len(speedups) + 1)]
    return math.fsum(way * math.log(speedup) for way, speedup in zip(ways, speedups, strict=True)), math.fsum(ways)


def _exp(estimate: Estimate) -> Estimate:
    if estimate.interval is None:
        return Estimate(math.exp(estimate.value))
    low, high = math.exp(estimate.interval.low), math.exp(estimate.interval.high)
    return Estimate(math.exp(estimate.value), type(estimate.interval)(low=low, high=high))
