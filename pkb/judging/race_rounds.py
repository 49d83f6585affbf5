"""Race rounds: many quick calls on draws whose results are known, with a rank held up somewhere, or with no skew.

Everything random in them comes from the run's secret, so that a seed repeats them. In a paused round a rank stops
in the middle of a call, at another line of the candidate's Python each time, and its peers run ahead; a free one
has no delays at all, as in a real program, and tells how long a call takes, so how long a pause has to be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from pkb.judging.check import Truth
from pkb.judging.schedule import TrialPlan, traffic
from pkb.launch import wire
from pkb.launch.plan import CallPlan, CallsAnswer, RunCalls

NUM_ROUNDS = 12
MIN_PAUSED_ROUNDS = 3
"""Made whatever they take: some forty pauses, which try each place of a short solution more than once."""
PAUSED_CALLS = 20
FREE_CALLS = 32
MAX_CALL_BYTES = 8 * 1024**2
"""Sizes whose calls move more than this are left to the trials: their results would take longer than the calls."""
_BUDGET_SHARE = 0.25
_MIN_BUDGET_S = 0.1
_MAX_BUDGET_S = 1.0
_DRAWS_PER_SIZE = 4
"""So few that a call soon meets a result that is known."""
_DRAWN_FOR_US = 1000
"""Time of a call that pauses are drawn for, before they are fitted to what a call takes."""
_MIN_PAUSE_US = 1000
_MAX_PAUSE_US = 2500
"""Longer than a peer needs to end its call and to begin the next one."""
_MIN_CALL_US = 500
_MAX_CALL_US = 8000
"""Pauses are fitted to calls of this length at least and at most."""
_MAX_RUN = 4
"""Most calls in a row at one size."""
_OCCUPIED = 0.25
"""Share of the paused calls that run beside work that occupies the device."""


@dataclass(frozen=True)
class RaceRound:
    """Calls that run back to back, and which rank is held up where."""

    plan: TrialPlan
    paused: bool
    commands: tuple[RunCalls, ...]
    """One for each rank."""

    def fitted(self, call_us: float) -> RaceRound:
        """The same round with pauses that outlast a call.

        Args:
            call_us: what a call without a pause takes here, with all that a rank does between two calls.
        """
        factor = min(_MAX_CALL_US, max(_MIN_CALL_US, call_us)) / _DRAWN_FOR_US
        commands = [RunCalls(calls=tuple(_fitted(plan, factor) for plan in command.calls)) for command in self.commands]
        return replace(self, commands=tuple(commands))


def budget_s(trials_s: float) -> float:
    """Seconds after which no further round needs to begin.

    Args:
        trials_s: what the trials have taken.
    """
    return min(_MAX_BUDGET_S, max(_MIN_BUDGET_S, _BUDGET_SHARE * trials_s))


def rounds_within(
    truth: Truth, seconds: float, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[RaceRound]:
    """Race rounds of a run, in order, until the time is spent; at least `MIN_PAUSED_ROUNDS` with pauses.

    Args:
        truth: the run's draws and secret.
        seconds: no further round begins after so long; infinity for all rounds.
        clock: what tells seconds.
    """
    begin, num_paused = clock(), 0
    for race in race_rounds(truth):
        if num_paused >= MIN_PAUSED_ROUNDS and clock() - begin > seconds:
            return
        yield race
        num_paused += race.paused


def race_rounds(truth: Truth) -> Iterator[RaceRound]:
    """All race rounds of a run, in order: a free one, three paused ones, and so on; none where every size is large.

    Pauses are those for calls of 1 ms; see `RaceRound.fitted`.
    """
    draws = _draws_by_size(truth)
    if not draws:
        return
    chance = random.Random(truth.secret + b"race rounds")
    world_size, first = truth.config.world_size, len(truth.schedule.trials)
    # Counts through the lines of a call from a random one, over all rounds.
    line = chance.randrange(1 << 16)
    for index in range(NUM_ROUNDS):
        paused = index % 4 != 0
        calls, ends = _calls(draws, PAUSED_CALLS if paused else FREE_CALLS, chance)
        ranks: list[list[CallPlan]] = [[CallPlan(draw=draw) for draw in calls] for _ in range(world_size)]
        if paused:
            line = _pause(ranks, ends, line, chance)
        commands = tuple(RunCalls(calls=tuple(plans)) for plans in ranks)
        yield RaceRound(TrialPlan(first + index, exact=False, calls=tuple(calls)), paused, commands)


@dataclass
class KnownResults:
    """Results that have been compared with the oracle and were right, by their bits."""

    _known: set[tuple[int, tuple[bytes, ...]]] = field(default_factory=set)
    """(draw, digest of each rank's result): of all ranks together, since some results must agree between ranks."""

    def add(self, plan: TrialPlan, messages: Sequence[wire.Message]) -> None:
        """Note the results of calls that have passed."""
        self._known.update(zip(plan.calls, _digests(_answers(messages), messages), strict=True))

    def covers(self, plan: TrialPlan, messages: Sequence[wire.Message]) -> bool:
        """Whether every result is known, and nothing was changed that must stay.

        Raises:
            ProtocolError: an answer is not in the judge's format; or pydantic's ValidationError.
        """
        answers = _answers(messages)
        if any(answer.mutated or answer.changed_later for answer in answers):
            return False
        return self._known.issuperset(zip(plan.calls, _digests(answers, messages), strict=True))


def _answers(messages: Sequence[wire.Message]) -> list[CallsAnswer]:
    return [CallsAnswer.model_validate(message.header) for message in messages]


def _digests(answers: Sequence[CallsAnswer], messages: Sequence[wire.Message]) -> list[tuple[bytes, ...]]:
    """For each call the digests of all ranks' results."""
    of_ranks = []
    for answer, message in zip(answers, messages, strict=True):
        digests, offset = [], 0
        for description in answer.results:
            _, end = wire.rebuild(description, message.payload, offset)
            digest = blake2b(repr(description).encode(), digest_size=16)
            digest.update(memoryview(message.payload)[offset:end])
            digests.append(digest.digest())
            offset = end
        of_ranks.append(digests)
    return list(zip(*of_ranks, strict=True))


def _draws_by_size(truth: Truth) -> dict[str, list[int]]:
    """Positions of a few of the trials' draws for each size that is small enough."""
    found: dict[str, list[int]] = {}
    for trial in truth.schedule.trials:
        for position in trial.calls:
            size = truth.schedule.draws[position].size
            if traffic(truth.problem, truth.code, truth.config, size) <= MAX_CALL_BYTES:
                found.setdefault(size, []).append(position)
    return {size: positions[:_DRAWS_PER_SIZE] for size, positions in found.items()}


def _calls(draws: dict[str, list[int]], count: int, chance: random.Random) -> tuple[list[int], list[bool]]:
    """Draws in runs of one size, never the same twice in a row; and for each call whether it ends its run."""
    calls: list[int] = []
    ends: list[bool] = []
    while len(calls) < count:
        size = chance.choice(list(draws))
        length = min(chance.randint(2, _MAX_RUN), count - len(calls))
        for number in range(length):
            calls.append(chance.choice([p for p in draws[size] if p not in calls[-1:]]))
            ends.append(number == length - 1)
    return calls, ends


def _pause(ranks: list[list[CallPlan]], ends: Sequence[bool], line: int, chance: random.Random) -> int:
    """Pause one rank, another one each time, in every call that is followed by one of its size; returns the next line.

    In the first call no rank pauses, but all count their lines.
    """
    for plans in ranks:
        plans[0] = plans[0].model_copy(update={"pause_line": line})
    victims: list[int] = []
    for number, ends_run in enumerate(ends):
        if number == 0 or ends_run:
            continue
        victims = victims or chance.sample(range(len(ranks)), len(ranks))
        plans = ranks[victims.pop()]
        plans[number] = plans[number].model_copy(
            update={
                "pause_line": line,
                "pause_us": chance.randint(_MIN_PAUSE_US, _MAX_PAUSE_US),
                "pause_on_device": chance.random() < 0.5,
                "occupy_us": _MAX_PAUSE_US if chance.random() < _OCCUPIED else 0,
            }
        )
        line += 1
    return line


def _fitted(plan: CallPlan, factor: float) -> CallPlan:
    return plan.model_copy(
        update={"pause_us": round(plan.pause_us * factor), "occupy_us": round(plan.occupy_us * factor)}
    )
