"""Scores of parts of a run: by group and parallelism of problems, by class and mechanism of solutions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pkb.records.attempt import Attempt
from pkb.records.run import RunProblem
from pkb.records.verdict import Verdict
from pkb.reporting.scores import Result, Results

_BETWEEN_WORDS = re.compile(r"\s*(?:/|\+|,)\s*")


@dataclass(frozen=True)
class Way:
    """Correct attempts that share a property of their solution."""

    name: str
    """The property, such as `copy engine`."""
    num_attempts: int
    """Correct attempts that have it."""
    num_problems: int
    """Problems that they are for."""
    geomean: float | None
    """Geometric mean of their speedups; None if none was timed."""


def results_by(
    problems: Sequence[RunProblem], results: Results, names: Callable[[RunProblem], Iterable[str]]
) -> dict[str, Results]:
    """Results of the problems of each name, most problems first; a problem may have several names."""
    parts: dict[str, dict[str, Sequence[Result]]] = {}
    for problem in problems:
        for name in names(problem):
            parts.setdefault(name, {})[problem.id] = results[problem.id]
    return dict(sorted(parts.items(), key=lambda part: (-len(part[1]), part[0])))


def group_of(problem: RunProblem) -> tuple[str, ...]:
    """Its group."""
    return (problem.group,)


def parallelism_words(problem: RunProblem) -> tuple[str, ...]:
    """The words of its parallelism: `tp / sp` has two."""
    return tuple(dict.fromkeys(_BETWEEN_WORDS.split(problem.parallelism)))


def class_of(verdict: Verdict) -> tuple[str, ...]:
    """Whose work a correct solution is: `custom`, `hybrid` or `library`, where that was observed."""
    return (str(verdict.solution_class or "not observed"),)


def mechanisms_of(verdict: Verdict) -> tuple[str, ...]:
    """The means of moving data that the verdict saw."""
    return verdict.mechanisms or ("none seen",)


def ways(attempts: Mapping[str, Sequence[Attempt]], names: Callable[[Verdict], Iterable[str]]) -> tuple[Way, ...]:
    """Correct attempts by a property of the turn that counts, most attempts first."""
    found: dict[str, list[tuple[str, float | None]]] = {}
    for problem, tries in attempts.items():
        for attempt in tries:
            turn = attempt.best
            if turn is not None and turn.verdict is not None and turn.is_correct:
                for name in names(turn.verdict):
                    found.setdefault(name, []).append((problem, turn.speedup))
    return tuple(_way(name, members) for name, members in sorted(found.items(), key=lambda item: -len(item[1])))


def _way(name: str, members: Sequence[tuple[str, float | None]]) -> Way:
    logs = [math.log(speedup) for _, speedup in members if speedup is not None]
    return Way(
        name=name,
        num_attempts=len(members),
        num_problems=len({problem for problem, _ in members}),
        geomean=math.exp(math.fsum(logs) / len(logs)) if logs else None,
    )
