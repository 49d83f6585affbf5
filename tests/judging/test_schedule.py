"""What is drawn, called and delayed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pkb.judging.config import JudgeConfig
from pkb.judging.schedule import CALLS_OF_A_SIZE, make_schedule, max_result_bytes, rank_bytes, redraws, skewed_calls
from pkb.problems._find import get_problem, list_problems

SECRET = b"s" * 32
GIB = 1024**3


@pytest.mark.parametrize("name", [problem.id for problem in list_problems()])
def test_every_draw_is_used_once_and_shapes_alternate(name: str) -> None:
    problem = get_problem(name)
    config = JudgeConfig(size="base", dtype=problem.dtypes[0])
    schedule = make_schedule(problem, problem.load(), config, timed_bytes=GIB)
    used = [p for trial in schedule.trials for p in trial.calls]
    assert sorted(used) == list(range(len(schedule.draws)))
    assert [draw.index for draw in schedule.draws] == list(range(len(schedule.draws)))
    for trial in schedule.trials:
        sizes = [schedule.draws[p].size for p in trial.calls]
        assert {"tiny", "base"} - set(schedule.light_trials) <= set(sizes)
        for size in set(sizes):
            assert sizes.count(size) == CALLS_OF_A_SIZE
            assert any(a == b == size for a, b in pairwise(sizes)), "no two calls in a row"
    assert [trial.exact for trial in schedule.trials] == [False] * 3 + [True] * problem.exact_trial


def test_exact_only_sizes_stay_out_of_random_trials() -> None:
    problem = get_problem("allreduce")
    schedule = make_schedule(problem, problem.load(), JudgeConfig(size="tiny"), timed_bytes=GIB)
    random_sizes = {schedule.draws[p].size for t in schedule.trials if not t.exact for p in t.calls}
    exact_sizes = {schedule.draws[p].size for t in schedule.trials if t.exact for p in t.calls}
    assert "tiny_one" not in random_sizes | set(schedule.timed)
    assert "tiny_one" in exact_sizes


def test_large_sizes_get_one_random_trial() -> None:
    problem = get_problem("allreduce")
    schedule = make_schedule(problem, problem.load(), JudgeConfig(size="large"), timed_bytes=GIB)
    assert schedule.light_trials == ("large",)
    trials = [t.index for t in schedule.trials if any(schedule.draws[p].size == "large" for p in t.calls)]
    assert trials == [0, 3]
    assert schedule.timed == {"large": 2}, "two calls are timed even where more do not fit"


def test_a_rank_gets_no_peer_seed() -> None:
    problem = get_problem("allreduce")
    config = JudgeConfig(size="tiny", world_size=4)
    schedule = make_schedule(problem, problem.load(), config, timed_bytes=0)
    plans = [schedule.prepare(problem, config, SECRET, rank, 1).draws for rank in range(4)]
    own = [{draw.own_seed for draw in plan} for plan in plans]
    assert len(set.union(*own)) == 4 * len(schedule.draws)
    assert len({tuple(draw.shared_seed for draw in plan) for plan in plans}) == 1


def test_skew_hits_one_rank_at_a_time_and_leaves_the_call_after_a_slow_reader_alone() -> None:
    problem = get_problem("allgather")
    schedule = make_schedule(problem, problem.load(), JudgeConfig(size="base"), timed_bytes=0)
    trial = schedule.trials[0]
    sizes = [schedule.draws[p].size for p in trial.calls]
    ranks = [skewed_calls(trial, sizes, rank, 4, SECRET).calls for rank in range(4)]
    readers = 0
    for number in range(len(sizes)):
        before = [r for r in range(4) if ranks[r][number].host_delay_us or ranks[r][number].device_delay_us]
        behind = [r for r in range(4) if ranks[r][number].barrier_delays_us]
        assert len(before) <= 1 and len(behind) <= 1 and not (before and behind)
        if behind:
            readers += 1
            assert sizes[number] == sizes[number + 1]
            after = [ranks[r][number + 1] for r in range(4)]
            assert not any(c.host_delay_us or c.device_delay_us for c in after)
    assert readers >= 2


def test_another_secret_gives_other_skew() -> None:
    problem = get_problem("allgather")
    schedule = make_schedule(problem, problem.load(), JudgeConfig(size="base"), timed_bytes=0)
    trial = schedule.trials[0]
    sizes = [schedule.draws[p].size for p in trial.calls]
    assert skewed_calls(trial, sizes, 0, 2, SECRET) != skewed_calls(trial, sizes, 0, 2, b"t" * 32)


def test_a_baseline_prepares_nothing_and_draws_for_its_blocks() -> None:
    problem = get_problem("allreduce")
    schedule = make_schedule(problem, problem.load(), JudgeConfig(size="latency"), timed_bytes=GIB)
    reduced = schedule.only_timed()
    assert reduced.timed == schedule.timed
    assert set(reduced.timed) == {"latency_4kib", "latency_64kib", "latency_1mib"}
    assert not reduced.draws


def test_no_two_timed_calls_share_a_draw_and_no_rank_learns_a_peers_seed() -> None:
    problem = get_problem("allreduce")
    first = redraws(problem, SECRET, "base", 0, 50, world_size=2)
    then = redraws(problem, SECRET, "base", 50, 50, world_size=2)
    own = [seed for command in (*first, *then) for seed in command.own_seeds]
    assert len(set(own)) == len(own) == 200
    assert first[0].shared_seeds == first[1].shared_seeds != then[0].shared_seeds


def test_memory_estimate_covers_draws_and_results() -> None:
    problem = get_problem("allreduce")
    code = problem.load()
    config = JudgeConfig(size="large", rounds=0)
    schedule = make_schedule(problem, code, config, timed_bytes=0)
    num_large = sum(draw.size == "large" for draw in schedule.draws)
    assert rank_bytes(problem, code, config, schedule) > num_large * 512 * 2**20
    assert max_result_bytes(problem, code, config, schedule) > 512 * 2**20
