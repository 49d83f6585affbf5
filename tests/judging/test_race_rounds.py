"""Which calls race rounds make, whom they hold up, and which results they take for known."""

from __future__ import annotations

import math
from itertools import count, pairwise

import pytest
import torch

from pkb.judging.check import Truth
from pkb.judging.config import JudgeConfig
from pkb.judging.race_rounds import (
    MIN_PAUSED_ROUNDS,
    NUM_ROUNDS,
    KnownResults,
    RaceRound,
    budget_s,
    race_rounds,
    rounds_within,
)
from pkb.judging.schedule import TrialPlan, make_schedule
from pkb.launch import wire
from pkb.launch.plan import CallsAnswer
from pkb.problems._find import get_problem

SECRET = b"s" * 32


def truth_of(size: str = "tiny", secret: bytes = SECRET) -> Truth:
    problem = get_problem("allreduce")
    config = JudgeConfig(size=size, world_size=4)
    schedule = make_schedule(problem, problem.load(), config, timed_bytes=0)
    return Truth(problem, problem.load(), config, schedule, secret, "cpu")


def rounds_of(*, size: str = "tiny", secret: bytes = SECRET) -> tuple[RaceRound, ...]:
    return tuple(race_rounds(truth_of(size, secret)))


def answer_of(value: float, *, mutated: bool = False) -> wire.Message:
    description, tensors = wire.describe(torch.full((3,), value), torch.device("cpu"), 100)
    header = CallsAnswer(
        done="run_calls", results=(description,), mutated=((0, 0),) if mutated else (), changed_later=()
    )
    return wire.Message(header.model_dump(mode="json"), bytearray(wire.raw_bytes(tensors[0])))


def test_a_secret_repeats_all_rounds_and_another_does_not() -> None:
    assert rounds_of() == rounds_of()
    assert rounds_of() != rounds_of(secret=b"t" * 32)


def test_rounds_make_hundreds_of_calls_with_new_contents_each_time() -> None:
    rounds = rounds_of()
    assert sum(len(race.plan.calls) for race in rounds) >= 200
    for race in rounds:
        assert all(a != b for a, b in pairwise(race.plan.calls))
        assert [c.draw for c in race.commands[0].calls] == list(race.plan.calls)


def test_shapes_alternate() -> None:
    draws = truth_of().schedule.draws
    for race in rounds_of():
        sizes = [draws[position].size for position in race.plan.calls]
        assert any(a == b for a, b in pairwise(sizes)) and any(a != b for a, b in pairwise(sizes))


def test_every_rank_is_held_up_alone_at_ever_new_lines_and_free_rounds_have_no_skew() -> None:
    rounds = rounds_of()
    victims, lines = set(), []
    for race in rounds:
        for plans in zip(*(command.calls for command in race.commands), strict=True):
            paused = [rank for rank, plan in enumerate(plans) if plan.pause_us]
            assert len(paused) <= (1 if race.paused else 0)
            assert not any(plan.host_delay_us or plan.device_delay_us for plan in plans)
            victims.update(paused)
            lines += [plans[rank].pause_line for rank in paused]
    assert victims == {0, 1, 2, 3}
    assert all(b == a + 1 for a, b in pairwise(line for line in lines if line is not None))
    assert {race.paused for race in rounds} == {True, False}


def test_large_sizes_are_left_to_the_trials() -> None:
    draws = truth_of("large").schedule.draws
    used = {draws[position].size for race in rounds_of(size="large") for position in race.plan.calls}
    assert used and "large" not in used


@pytest.mark.parametrize(("trials_s", "budget"), [(0.0, 0.1), (2.0, 0.5), (60.0, 1.0)])
def test_budget_follows_the_trials_within_limits(trials_s: float, budget: float) -> None:
    assert budget_s(trials_s) == budget


def test_three_paused_rounds_are_made_on_however_slow_a_machine() -> None:
    seconds = count(0, 1000)
    made = list(rounds_within(truth_of(), 0.0, clock=lambda: float(next(seconds))))
    assert sum(race.paused for race in made) == MIN_PAUSED_ROUNDS == 3
    assert made == list(rounds_of())[: len(made)]


def test_a_budget_is_used_up_and_an_endless_one_makes_all_rounds() -> None:
    seconds = count(0, 1)
    made = list(rounds_within(truth_of(), 6.0, clock=lambda: float(next(seconds))))
    assert sum(race.paused for race in made) > MIN_PAUSED_ROUNDS and len(made) < NUM_ROUNDS
    assert len(list(rounds_within(truth_of(), math.inf))) == NUM_ROUNDS


def test_a_free_round_comes_first_and_pauses_outlast_the_calls_that_it_has_timed() -> None:
    free, paused = rounds_of()[:2]
    assert not free.paused and paused.paused
    for call_us, least_us, most_us in ((10.0, 500, 1250), (3000.0, 3000, 7500), (1e6, 8000, 20000)):
        plans = [plan for command in paused.fitted(call_us).commands for plan in command.calls]
        pauses = [plan.pause_us for plan in plans if plan.pause_us]
        assert pauses and least_us <= min(pauses) and max(pauses) <= most_us
        assert {plan.occupy_us for plan in plans} == {0, most_us}
    assert free.fitted(3000.0) == free


def test_results_are_known_by_draw_rank_and_bits() -> None:
    known = KnownResults()
    plan = TrialPlan(4, exact=False, calls=(7,))
    known.add(plan, [answer_of(1.0), answer_of(2.0)])
    assert known.covers(plan, [answer_of(1.0), answer_of(2.0)])
    assert not known.covers(plan, [answer_of(2.0), answer_of(1.0)])
    assert not known.covers(plan, [answer_of(1.0), answer_of(2.5)])
    assert not known.covers(TrialPlan(4, exact=False, calls=(8,)), [answer_of(1.0), answer_of(2.0)])
    assert not known.covers(plan, [answer_of(1.0, mutated=True), answer_of(2.0)])


def test_an_answer_without_its_bytes_is_an_error() -> None:
    plan = TrialPlan(4, exact=False, calls=(7,))
    with pytest.raises(wire.ProtocolError):
        KnownResults().covers(plan, [wire.Message(answer_of(1.0).header, bytearray(4))])
