"""The run of one candidate: its trials, its timing, its audit, and the reason when one of them fails."""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pydantic import ValidationError

from pkb.judging import audit
from pkb.judging.baseline import BaselineRanks
from pkb.judging.check import TrialOutcome, Truth, check_trial, result_of
from pkb.judging.config import JudgeConfig
from pkb.judging.draft import Draft, Stop
from pkb.judging.explain import Call, compare_call, explain
from pkb.judging.means import means_of
from pkb.judging.race_rounds import KnownResults, budget_s, rounds_within
from pkb.judging.roofline import speed_of_light
from pkb.judging.schedule import Schedule, TrialPlan, skewed_calls, timed_secret
from pkb.judging.timing import Block, Blocks, clocks_disagree, speedup_interval, trusted_times_us
from pkb.launch.hardware import hardware_profile
from pkb.launch.plan import CollectivesAnswer, ListCollectives, Profile, ProfileAnswer, RunCalls
from pkb.launch.ranks import RankFailure, RankSet
from pkb.launch.wire import Message, ProtocolError
from pkb.records.verdict import Cause, DeviceMode, Failure, Phase, Status, Timing

_NUM_RERUNS = 2
_HEAVY_RESULT_BYTES = 64 * 1024**2
"""Results larger than this are verified after one timed block only."""


@dataclass
class Candidate:
    """One loaded candidate on its ranks."""

    truth: Truth
    ranks: RankSet
    draft: Draft

    @property
    def _config(self) -> JudgeConfig:
        return self.truth.config

    @property
    def _schedule(self) -> Schedule:
        return self.truth.schedule

    def check(self) -> None:
        """Run all trials.

        Raises:
            Stop: a rank failed, a result is wrong, or an input was changed.
        """
        trials = self._schedule.trials
        begin = time.perf_counter()
        for plan in trials:
            kind = "exact trial" if plan.exact else f"trial {plan.index + 1} of {self._config.trials}"
            with self.draft.phase(Phase.CHECK, f"{kind}: {len(plan.calls)} calls"):
                # A solution may build an extension when it is first called: that gets the time of a build.
                commands = self._skewed(plan)
                outcome = self._run(plan, commands, self._config.build_deadline_s if plan is trials[0] else 0.0)
                self.draft.trials += outcome.trials
            if not outcome.passed:
                self._stop_at(plan, commands, outcome)
            self.truth.forget()
        self._race(math.inf if self._config.seed else budget_s(time.perf_counter() - begin))

    def _race(self, seconds: float) -> None:
        """Run race rounds, within a budget as far as it allows."""
        known = KnownResults()
        call_us = 0.0
        for number, drawn in enumerate(rounds_within(self.truth, seconds)):
            race = drawn.fitted(call_us)
            kind = "a rank held up" if race.paused else "no skew"
            with self.draft.phase(Phase.CHECK, f"race round {number + 1}: {len(race.plan.calls)} calls, {kind}"):
                begin = time.perf_counter()
                messages = self.ranks.request(race.commands, self._config.deadline_s)
                if not race.paused:
                    call_us = (time.perf_counter() - begin) * 1e6 / len(race.plan.calls)
                with _refusing_other_formats():
                    if known.covers(race.plan, messages):
                        continue
                outcome = self._compare(race.plan, messages)
            if not outcome.passed:
                self.draft.trials += outcome.trials
                self._stop_at(race.plan, race.commands, outcome)
            known.add(race.plan, messages)
        self.truth.forget()

    def time(self, baseline: BaselineRanks | None) -> None:
        """Time all sizes that the schedule names, auditing each.

        Raises:
            Stop: a rank failed, a timed result is wrong, or a time is not credible.
        """
        begin_ns = time.time_ns()
        for size in self._schedule.timed:
            with self.draft.phase(Phase.TIME, f"size {size}"):
                timing, disagreement = self._time_size(size, baseline)
            self.draft.timings.append(timing)
            for cause, reason in (
                (Cause.TOO_FAST, audit.too_fast(timing)),
                (Cause.CLOCKS_DISAGREE, disagreement),
            ):
                if reason:
                    raise Stop(Status.REFUSED, Failure(phase=Phase.AUDIT, cause=cause, detail=reason))
        with self.draft.phase(Phase.AUDIT, "collectives of the timed calls"):
            messages = self.ranks.request(ListCollectives(begin_ns=begin_ns), self._config.deadline_s)
        if self.draft.means is not None:
            counts = [CollectivesAnswer.model_validate(message.header).collectives for message in messages]
            self.draft.means = self.draft.means.with_timed(counts)

    def profile(self) -> None:
        """Find out by what means the candidate communicates.

        Raises:
            Stop: a rank failed.
        """
        with self.draft.phase(Phase.AUDIT, "profiling one call"):
            draw = self._schedule.trials[0].calls[-1]
            messages = self.ranks.request(Profile(draw=draw), self._config.deadline_s)
            answers = [ProfileAnswer.model_validate(message.header) for message in messages]
        self.draft.means = means_of(answers, on_gpu=self.draft.mode is not DeviceMode.CPU)

    def _skewed(self, plan: TrialPlan) -> list[RunCalls]:
        """A trial's calls for each rank."""
        world_size = self._config.world_size
        sizes = [self._schedule.draws[position].size for position in plan.calls]
        return [skewed_calls(plan, sizes, rank, world_size, self.truth.secret) for rank in range(world_size)]

    def _run(self, plan: TrialPlan, commands: Sequence[RunCalls], build_deadline_s: float = 0.0) -> TrialOutcome:
        messages = self.ranks.request(commands, self._config.deadline_s, build_deadline_s=build_deadline_s)
        return self._compare(plan, messages)

    def _compare(self, plan: TrialPlan, messages: Sequence[Message]) -> TrialOutcome:
        with _refusing_other_formats():
            return check_trial(self.truth, plan, messages)

    def _stop_at(self, plan: TrialPlan, commands: Sequence[RunCalls], outcome: TrialOutcome) -> None:
        """Say what is wrong with a trial and end the judging."""
        with self.draft.phase(Phase.EXPLAIN, "comparing with plausible wrong answers"):
            if outcome.failing is not None:
                found = explain(
                    self.truth.problem,
                    self.truth.code,
                    outcome.calls,
                    outcome.failing,
                    self._config.dtype,
                    self._reruns(plan, commands),
                )
                detail = found.detail
                if outcome.mutated:
                    detail += " It also changed its input: inputs must stay bit-identical."
                failure = Failure(phase=Phase.CHECK, cause=found.cause, detail=detail, mismatch=found.mismatch)
                raise Stop(Status.WRONG, failure)
        if outcome.mutated:
            rank, call, argument = outcome.mutated[0]
            name = self.truth.problem.argument_names()[argument]
            detail = (
                f"rank {rank} changed its input `{name}` (argument {argument}) in call {call} of trial"
                f" {plan.index}: inputs must stay bit-identical. Work on a copy."
            )
            raise Stop(Status.MUTATED_INPUT, Failure(phase=Phase.CHECK, cause=Cause.MUTATED, detail=detail))
        rank, tensor = outcome.changed_later[0]
        detail = (
            f"rank {rank}: tensor {tensor} of the result changed after solution had returned, in trial"
            f" {plan.index}: a peer still writes to it. A returned tensor must stay intact until the rank calls"
            " solution again."
        )
        raise Stop(Status.WRONG, Failure(phase=Phase.CHECK, cause=Cause.OVERWRITTEN, detail=detail))

    def _reruns(self, plan: TrialPlan, commands: Sequence[RunCalls]) -> list[tuple[Call, ...]]:
        """The same trial again, to tell a race from a fixed mistake."""
        outcomes = []
        for _ in range(_NUM_RERUNS):
            try:
                outcomes.append(self._run(plan, commands).calls)
            except RankFailure:
                # It has already failed once; that it now hangs or crashes instead adds no explanation.
                break
        return outcomes

    def _time_size(self, size: str, baseline: BaselineRanks | None) -> tuple[Timing, str]:
        """Times at a size, and why the judge's clock contradicts them."""
        config, problem = self._config, self.truth.problem
        max_calls = self._schedule.timed[size]
        truth = replace(self.truth, secret=timed_secret(self.truth.secret, size))
        ours = Blocks(self.ranks, problem, size, truth.secret, max_calls=max_calls, deadline_s=config.deadline_s)
        theirs = baseline.blocks(size) if baseline is not None else None
        ours.warm_up()
        if theirs is not None:
            theirs.warm_up()
        # A large result is verified once, in a round that nobody can foresee.
        chosen = secrets.randbelow(config.rounds)
        candidate: list[Block] = []
        reference: list[Block] = []
        for round_ in range(config.rounds):
            # Candidate and baseline swap places from round to round (ABBA), so that drift cancels.
            if theirs is not None and round_ % 2 == 0:
                reference.append(theirs.run())
            candidate.append(ours.run())
            if round_ == chosen or not self._is_heavy(size):
                self._verify(truth, candidate[-1], ours.picked_results(), round_)
            if theirs is not None and round_ % 2 == 1:
                reference.append(theirs.run())
        return self._timing(size, candidate, reference), clocks_disagree(candidate, reference, size)

    def _timing(self, size: str, candidate: Sequence[Block], reference: Sequence[Block]) -> Timing:
        candidate_us = trusted_times_us(candidate, reference)
        baseline_us = [block.time_us for block in reference]
        time_us = statistics.median(candidate_us)
        reference_us = statistics.median(baseline_us) if baseline_us else None
        problem, config = self.truth.problem, self._config
        light = None
        if self.draft.mode is DeviceMode.CUDA:
            hardware = hardware_profile(self.draft.device_name)
            if hardware is not None:
                cost = self.truth.code.cost(problem.sizes[size], config.world_size, config.dtype)
                light = speed_of_light(cost, config.dtype, hardware)
        return Timing(
            size=size,
            candidate_us=time_us,
            baseline_us=reference_us,
            speedup=reference_us / time_us if reference_us is not None else None,
            speedup_interval=speedup_interval(baseline_us, candidate_us) if baseline_us else None,
            candidate_samples_us=tuple(candidate_us),
            baseline_samples_us=tuple(baseline_us),
            iterations=max(block.iterations for block in candidate),
            parent_us=statistics.median(block.parent_us / block.iterations for block in candidate),
            sol_us=light.time_us if light is not None else None,
            sol_bound=light.bound if light is not None else None,
        )

    def _verify(self, truth: Truth, block: Block, messages: Sequence[Message], round_: int) -> None:
        """Compare the results of a block's picked call with the oracle."""
        inputs, want = truth.of(block.picked)
        with _refusing_other_formats():
            got = [result_of(message, truth.device) for message in messages]
        truth.forget()
        call = Call(block.picked.size, block.picked.index, False, inputs, want, got)
        if all(c.passed for c in compare_call(self.truth.problem, call, self._config.dtype)):
            return
        found = explain(self.truth.problem, self.truth.code, [call], 0, self._config.dtype)
        detail = (
            f"correct in all trials, but wrong while it was timed (round {round_}, call {call.index}): {found.detail}"
        )
        raise Stop(Status.WRONG, Failure(phase=Phase.TIME, cause=found.cause, detail=detail, mismatch=found.mismatch))

    def _is_heavy(self, size: str) -> bool:
        cost = self.truth.code.cost(self.truth.problem.sizes[size], self._config.world_size, self._config.dtype)
        return cost.hbm_bytes > _HEAVY_RESULT_BYTES


@contextmanager
def _refusing_other_formats() -> Iterator[None]:
    """Refuse the candidate if answers that are read in here are not in the judge's format."""
    try:
        yield
    except (ProtocolError, ValidationError) as error:
        detail = f"an answer of a rank is not in the judge's format: {error}"
        raise Stop(Status.REFUSED, Failure(phase=Phase.CHECK, cause=Cause.FORBIDDEN, detail=detail)) from error
