"""Comparing the results of all ranks with the oracle, which is evaluated here, in the judge's own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pkb.judging.config import JudgeConfig
from pkb.judging.explain import Call, compare_call
from pkb.judging.schedule import DrawSpec, Schedule, TrialPlan
from pkb.launch import wire
from pkb.launch.plan import CallsAnswer, ResultAnswer
from pkb.problems._check import Comparison
from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._spec import Judgeside, Problem
from pkb.records.verdict import Trial


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial's calls returned, compared."""

    trials: tuple[Trial, ...]
    """One record for each size."""
    calls: tuple[Call, ...]
    failing: int | None
    """Number of the first call with a wrong result."""
    mutated: tuple[tuple[int, int, int], ...]
    """(rank, call, argument) of inputs that were changed."""
    changed_later: tuple[tuple[int, int], ...]
    """(rank, tensor of the last call's result) that were changed after the call had returned."""

    @property
    def passed(self) -> bool:
        """Everything was right and untouched."""
        return self.failing is None and not self.mutated and not self.changed_later


@dataclass
class Truth:
    """Inputs of all ranks and what the oracle makes of them; draws again what the ranks have drawn."""

    problem: Problem
    code: Judgeside
    config: JudgeConfig
    schedule: Schedule
    secret: bytes
    device: str
    _known: dict[DrawSpec, tuple[list[tuple[Any, ...]], list[Any]]] = field(default_factory=dict, init=False)

    def of(self, draw: DrawSpec) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Inputs and expected results of all ranks for one draw."""
        if draw not in self._known:
            inputs = [self._inputs(draw, rank) for rank in range(self.config.world_size)]
            self._known[draw] = inputs, self.code.oracle(inputs, self.config.world_size)
        return self._known[draw]

    def forget(self) -> None:
        """Free the memory of all draws."""
        self._known.clear()

    def _inputs(self, draw: DrawSpec, rank: int) -> tuple[Any, ...]:
        seeds = derive_seeds(self.secret, problem=self.problem.id, size=draw.size, index=draw.index, rank=rank)
        return self.code.inputs(
            self.problem.sizes[draw.size],
            make_draw(
                seeds,
                rank=rank,
                world_size=self.config.world_size,
                dtype=self.config.dtype,
                index=draw.index,
                exact=draw.exact,
                device=self.device,
            ),
        )


def check_trial(truth: Truth, plan: TrialPlan, messages: Sequence[wire.Message]) -> TrialOutcome:
    """Compare every result of every rank of one trial."""
    answers = [CallsAnswer.model_validate(message.header) for message in messages]
    num_arguments = truth.problem.num_arguments()
    if any(not 0 <= i < num_arguments for answer in answers for _, i in answer.mutated):
        raise wire.ProtocolError("an argument is named that the problem does not have")
    results = [_results(a, m.payload, truth.device) for a, m in zip(answers, messages, strict=True)]
    calls: list[Call] = []
    comparisons: list[list[Comparison]] = []
    for number, position in enumerate(plan.calls):
        draw = truth.schedule.draws[position]
        inputs, want = truth.of(draw)
        got = [rank_results[number] for rank_results in results]
        calls.append(Call(draw.size, draw.index, draw.exact, inputs, want, got))
        comparisons.append(compare_call(truth.problem, calls[-1], truth.config.dtype))
    wrong = [n for n, ranks in enumerate(comparisons) if not all(c.passed for c in ranks)]
    return TrialOutcome(
        trials=tuple(_records(truth, plan, comparisons)),
        calls=tuple(calls),
        failing=wrong[0] if wrong else None,
        mutated=tuple((rank, n, i) for rank, a in enumerate(answers) for n, i in a.mutated),
        changed_later=tuple((rank, i) for rank, a in enumerate(answers) for i in a.changed_later),
    )


def result_of(message: wire.Message, device: str) -> Any:
    """The result that a rank has kept of a timed block."""
    answer = ResultAnswer.model_validate(message.header)
    return wire.rebuild(answer.result, message.payload, device=device)[0]


def _results(answer: CallsAnswer, payload: bytearray, device: str) -> list[Any]:
    """All results that a rank returned in a trial, in order of the calls."""
    values, offset = [], 0
    for description in answer.results:
        value, offset = wire.rebuild(description, payload, offset, device)
        values.append(value)
    return values


def _records(truth: Truth, plan: TrialPlan, comparisons: Sequence[Sequence[Comparison]]) -> list[Trial]:
    """One record for each size of a trial, with the worst of its calls."""
    records = []
    sizes = [truth.schedule.draws[position].size for position in plan.calls]
    for size in dict.fromkeys(sizes):
        mine = [c for s, ranks in zip(sizes, comparisons, strict=True) if s == size for c in ranks]
        errors = [c.error for c in mine if c.error is not None]
        tolerances = [c.tolerance for c in mine if c.tolerance is not None]
        roundings = [c.rounding_error for c in mine if c.rounding_error is not None]
        incomparable = any(not c.passed and c.error is None for c in mine)
        records.append(
            Trial(
                size=size,
                index=plan.index,
                exact=plan.exact,
                num_calls=sizes.count(size),
                error=max(errors) if errors and not incomparable else None,
                tolerance=max(tolerances) if tolerances else None,
                rounding_error=max(roundings) if roundings else None,
                passed=all(c.passed for c in mine),
            )
        )
    return records
