"""A run as a report reads it: every problem that was asked, with its attempts and what they count as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pkb.records.attempt import Attempt, Turn
from pkb.records.errors import UsageError
from pkb.records.run import Run
from pkb.records.run_folder import ATTEMPTS_FILE, RUN_FILE, RunFolder
from pkb.reporting.failures import Kind, kind_of
from pkb.reporting.scores import Column, Results, results_of

# From the best that can become of a problem to the worst: how far the code got.
_ORDER = (
    Kind.FAST, Kind.UNTIMED, Kind.SLOW, Kind.LIBRARY_FALLBACK, Kind.WRONG_NUMBERS, Kind.RANK_COORDINATION, Kind.RACE,
    Kind.HANG, Kind.LAUNCH, Kind.LINK, Kind.COMPILE, Kind.INTERFACE, Kind.SYNTAX, Kind.NO_CODE, Kind.REFUSED,
    Kind.NOT_SCORED,
)  # fmt: skip
_PLACE = {kind: place for place, kind in enumerate(_ORDER)}


@dataclass(frozen=True)
class Tried:
    """An attempt with what became of it."""

    attempt: Attempt
    kind: Kind
    turn: Turn | None
    """The turn that counts; None if there is none."""

    @property
    def speedup(self) -> float | None:
        """Of the turn that counts; None unless it is correct and timed."""
        return self.turn.speedup if self.turn is not None else None


@dataclass(frozen=True)
class Sheet:
    """A run and its attempts by problem, in the order of the problems that were asked."""

    run: Run
    tries: dict[str, tuple[Tried, ...]]
    """Attempts by problem and then by index; empty for a problem that has none yet."""

    @cached_property
    def attempts(self) -> dict[str, tuple[Attempt, ...]]:
        """Attempts of each problem."""
        return {problem: tuple(tried.attempt for tried in tries) for problem, tries in self.tries.items()}

    @cached_property
    def strict(self) -> Results:
        """What counts where library collectives do not."""
        return results_of(self.attempts, Column.STRICT)

    @cached_property
    def lenient(self) -> Results:
        """What counts where library collectives do."""
        return results_of(self.attempts, Column.LENIENT)

    def results(self, column: Column) -> Results:
        """What counts in a column."""
        return self.strict if column is Column.STRICT else self.lenient

    @cached_property
    def all(self) -> tuple[Tried, ...]:
        """Every attempt."""
        return tuple(tried for tries in self.tries.values() for tried in tries)

    @property
    def num_unscored(self) -> int:
        """Attempts that count nowhere."""
        return sum(tried.kind is Kind.NOT_SCORED for tried in self.all)

    @property
    def num_missing(self) -> int:
        """Attempts that were asked and are not there."""
        return self.run.attempts * len(self.tries) - len(self.all)

    @property
    def gaps(self) -> str:
        """What a reader of its scores has to know: `3 attempts not scored, 2 not made yet`; empty if nothing."""
        unscored = [f"{self.num_unscored} attempts not scored"] if self.num_unscored else []
        missing = [f"{self.num_missing} attempts not made yet"] if self.num_missing else []
        return ", ".join(unscored + missing)

    @cached_property
    def machines(self) -> str:
        """What its verdicts were reached on: `4 ranks, cuda, NVIDIA H200`."""
        verdicts = [tried.turn.verdict for tried in self.all if tried.turn is not None]
        found = dict.fromkeys(
            f"{verdict.world_size} ranks, {verdict.device}, {verdict.fingerprint.device_name}"
            for verdict in verdicts
            if verdict is not None
        )
        return "; ".join(found) or "nothing: no verdict yet"

    def best(self, problem: str) -> Tried | None:
        """The attempt at a problem that got furthest, the fastest of several that are correct, else the first."""
        return min(
            self.tries.get(problem, ()),
            key=lambda tried: (_PLACE[tried.kind], -(tried.speedup or 0.0), tried.attempt.index),
            default=None,
        )


def sheet(run: Run, attempts: Sequence[Attempt], where: str) -> Sheet:
    """Sort attempts under the problems of their run; of two with the same index the later one counts.

    Raises:
        UsageError: an attempt is at a problem that the run did not ask; `where` names the place.
    """
    found: dict[str, dict[int, Attempt]] = {problem.id: {} for problem in run.problems}
    for attempt in attempts:
        if attempt.problem not in found:
            raise UsageError(
                f"{where}: attempt {attempt.index} is at {attempt.problem!r}, which run {run.name!r} did not ask."
                " The files belong to different runs: give the folder as `pkb generate` wrote it."
            )
        found[attempt.problem][attempt.index] = attempt
    return Sheet(
        run,
        {
            problem: tuple(Tried(attempt, kind_of(attempt), attempt.best) for _, attempt in sorted(tries.items()))
            for problem, tries in found.items()
        },
    )


def run_folders(path: Path) -> tuple[Path, ...]:
    """The folder itself if it is a run, else the runs that lie in it, by name; none for any other path."""
    if RunFolder(path).exists():
        return (path,)
    return tuple(sorted(file.parent for file in path.glob(f"*/{RUN_FILE}")))


def read_sheet(path: str | Path) -> Sheet:
    """Read the folder of a run.

    Raises:
        UsageError: it is none, or a record in it cannot be read.
    """
    folder = RunFolder(path)
    return sheet(folder.run(), folder.attempts(), where=str(folder.path / ATTEMPTS_FILE))
