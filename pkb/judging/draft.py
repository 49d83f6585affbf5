"""A verdict in the making: what is known so far, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pkb.judging.config import JudgeConfig
from pkb.judging.faults import failure_of
from pkb.judging.means import Means
from pkb.launch.device import fingerprint
from pkb.launch.ranks import RankFailure
from pkb.problems._spec import Problem
from pkb.records.solution import Solution
from pkb.records.verdict import DeviceMode, Failure, Phase, Status, Timing, Trial, Verdict

Listener = Callable[[Phase, str], None]
"""Called with the phase and a few words on the step in it."""


def ignore(phase: Phase, step: str) -> None:
    """A listener that does nothing."""


class Stop(Exception):
    """The candidate has a status that is not `correct`: no further phase runs."""

    def __init__(self, status: Status, failure: Failure) -> None:
        super().__init__(f"{status}: {failure.detail}")
        self.status = status
        self.failure = failure


@dataclass
class Draft:
    """Collects what a verdict will say."""

    problem: Problem
    solution: Solution
    config: JudgeConfig
    mode: DeviceMode
    listener: Listener = ignore
    build_only: bool = False
    means: Means | None = None
    isolation: tuple[str, ...] = ()
    seed: str = ""
    current_phase: Phase = Phase.SCREEN
    trials: list[Trial] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, phase: Phase, step: str = "") -> Iterator[None]:
        """Time a phase; a rank that fails in it ends the judging.

        Raises:
            Stop: instead of the RankFailure.
        """
        self.current_phase = phase
        self.listener(phase, step)
        begin = time.perf_counter()
        try:
            yield
        except RankFailure as error:
            raise Stop(*failure_of(error, phase)) from error
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - begin

    @property
    def device_name(self) -> str:
        """Name of the GPU or CPU that ranks run on."""
        return fingerprint(self.mode).device_name

    def note(self, text: str) -> None:
        """Add something that a reader of the verdict has to know."""
        self._notes.append(text)

    def verdict(self, status: Status, failure: Failure | None = None) -> Verdict:
        """The finished record; a candidate that is not correct keeps its times but gets no speedup."""
        timings: Sequence[Timing] = self.timings
        if status is not Status.CORRECT:
            timings = [t.model_copy(update={"speedup": None, "speedup_interval": None}) for t in timings]
        means, notes = self.means, list(self._notes)
        if means is not None and means.collectives:
            notes.append(f"calls library collectives: {', '.join(means.collectives)}")
        return Verdict(
            problem=self.problem.id,
            problem_sha256=self.problem.sha256,
            solution=self.solution,
            status=status,
            failure=failure,
            device=self.mode,
            world_size=self.config.world_size,
            dtype=self.config.dtype,
            trials=tuple(self.trials),
            timings=tuple(timings),
            build_only=self.build_only,
            solution_class=means.solution_class if means else None,
            library=bool(means.collectives) if means else None,
            mechanisms=means.mechanisms if means else (),
            notes=tuple(notes),
            phase_seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
            isolation=self.isolation,
            seed=self.seed,
            config_sha256=self.config.sha256,
            fingerprint=fingerprint(self.mode),
        )
