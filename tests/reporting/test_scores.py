"""Scores against cases worked out by hand, against counting all draws, and against what any score must obey."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb.records.attempt import Attempt
from pkb.reporting import bootstrap
from pkb.reporting.scores import (
    THRESHOLDS,
    Column,
    Result,
    any_of_k,
    fast_p,
    fast_p_difference,
    geomean_speedup,
    geomean_speedup_or_one,
    is_timed,
    results_of,
    spending,
)

WRONG = Result(correct=False)


def right(speedup: float | None) -> Result:
    return Result(correct=True, speedup=speedup)


# Four problems, three attempts each but for the last.
BY_HAND = {
    "a": (right(2.0), right(0.5), WRONG),
    "b": (WRONG, WRONG, WRONG),
    "c": (right(1.0), WRONG, WRONG),
    "d": (right(4.0),),
}


@pytest.mark.parametrize(
    ("p", "k", "share"),
    [
        # Correct: 2 of 3, 0 of 3, 1 of 3, 1 of 1.
        (0.0, 1, (2 / 3 + 0 + 1 / 3 + 1) / 4),
        # One of two drawn: 1 - C(1,2)/C(3,2) = 1; 0; 1 - C(2,2)/C(3,2) = 2/3; 1.
        (0.0, 2, (1 + 0 + 2 / 3 + 1) / 4),
        (0.0, 3, 3 / 4),
        # Faster than 1, strictly: 1 of 3, 0, 0, 1 of 1.
        (1.0, 1, (1 / 3 + 0 + 0 + 1) / 4),
        (1.0, 3, 2 / 4),
        (1.5, 3, 2 / 4),
        # 2.0 is not faster than 2.
        (2.0, 3, 1 / 4),
    ],
)
def test_fast_p_by_hand(p: float, k: int, share: float) -> None:
    assert fast_p(BY_HAND, p, k).value == pytest.approx(share)


def test_geomeans_by_hand() -> None:
    # Best of all: 2, none, 1, 4.
    assert geomean_speedup(BY_HAND, 3).value == pytest.approx((2.0 * 1.0 * 4.0) ** (1 / 3))
    assert geomean_speedup_or_one(BY_HAND, 3).value == pytest.approx(8.0 ** (1 / 4))
    # One attempt of a: 2 or 0.5 or failed, so 0 in logs; c: log 1 = 0; d: log 4. Chances 2/3, 0, 1/3, 1.
    assert geomean_speedup_or_one(BY_HAND, 1).value == pytest.approx(4.0 ** (1 / 4))
    assert geomean_speedup(BY_HAND, 1).value == pytest.approx(4.0 ** (1 / 2))
    assert geomean_speedup({"b": (WRONG,)}, 1) is None
    assert geomean_speedup_or_one({"b": (WRONG,), "e": ()}, 1).value == 1.0


def test_the_published_share_has_the_interval_of_a_binomial() -> None:
    # 28 of 87 solved: standard error sqrt(0.322 * 0.678 / 87) = 0.050, so about +- 0.098.
    results = {str(i): (right(2.0) if i < 28 else WRONG,) for i in range(87)}
    found = fast_p(results, 1.0, 1)
    assert found.value == pytest.approx(28 / 87)
    assert found.interval.low == pytest.approx(28 / 87 - 0.098, abs=0.015)
    assert found.interval.high == pytest.approx(28 / 87 + 0.098, abs=0.015)
    assert fast_p(results, 1.0, 1) == found


def test_no_interval_where_all_problems_agree() -> None:
    assert fast_p({"a": (WRONG,), "b": (WRONG,)}, 0.0, 1) == bootstrap.Estimate(0.0)


def test_difference_is_over_common_problems() -> None:
    ours = {"a": (right(2.0),), "b": (WRONG,), "c": (right(2.0),)}
    theirs = {"a": (WRONG,), "b": (WRONG,), "x": (right(2.0),)}
    assert fast_p_difference(ours, theirs, 1.0, 1).value == pytest.approx(1 / 2)
    assert fast_p_difference(ours, {"x": (WRONG,)}, 1.0, 1) is None


def test_columns_differ_by_the_library(make_attempt: Callable[..., Attempt], make_turn) -> None:
    turns = [make_turn(speedup=3.0, library=True), make_turn(speedup=1.2, index=1)]
    attempts = {
        "a": [make_attempt(turns=turns)],
        "b": [make_attempt(speedup=2.0, library=True)],
        "c": [make_attempt("invalid")],
        "d": [make_attempt("no_code")],
    }
    assert results_of(attempts, Column.STRICT) == {"a": (right(1.2),), "b": (WRONG,), "c": (), "d": (WRONG,)}
    assert results_of(attempts, Column.LENIENT) == {"a": (right(3.0),), "b": (right(2.0),), "c": (), "d": (WRONG,)}


def test_a_run_without_speedups_is_not_timed() -> None:
    assert not is_timed({"a": (right(None),)})
    assert is_timed({"a": (right(None), right(1.0))})
    assert is_timed({"a": (WRONG,), "b": ()})


def test_spending_by_hand(make_attempt: Callable[..., Attempt]) -> None:
    attempts = {"a": [make_attempt(speedup=2.0), make_attempt("wrong")], "b": [make_attempt("invalid")], "c": []}
    spent = spending(attempts, results_of(attempts, Column.STRICT))
    assert spent.num_solved == 1
    assert (spent.total.input_tokens, spent.total.output_tokens) == (3000, 600)
    assert spent.per_solved(lambda usage: usage.cost_usd) == pytest.approx(0.03)
    unsolved = spending(attempts, {"a": (WRONG,)})
    assert unsolved.per_solved(lambda usage: usage.output_tokens) is None


# The same examples each time, however slow the machine is.
calm = settings(deadline=None, derandomize=True, database=None, max_examples=80)
attempts_made = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
single_results = st.one_of(
    st.just(WRONG), st.builds(right, st.floats(0.05, 20.0)), st.sampled_from([right(1.0), right(1.5), right(2.0)])
)
many_results = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2), st.lists(single_results, max_size=6), min_size=1
)


@calm
@given(attempts_made)
def test_any_of_k_is_the_share_of_draws_with_a_good_one(made: tuple[int, int, int]) -> None:
    num, good, k = made
    draws = list(itertools.combinations([True] * good + [False] * (num - good), k))
    assert any_of_k(num, good, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("num", "good", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_any_of_k_refuses_nonsense(num: int, good: int, k: int) -> None:
    with pytest.raises(ValueError, match="attempts at k"):
        any_of_k(num, good, k)


@calm
@given(st.lists(single_results, min_size=1, max_size=6), st.integers(1, 6))
def test_geomean_is_the_mean_over_all_draws(tries: Sequence[Result], k: int) -> None:
    bests = []
    for draw in itertools.combinations(tries, min(k, len(tries))):
        speedups = [result.speedup for result in draw if result.correct]
        bests.append(math.log(max(speedups)) if speedups else 0.0)
    assert math.log(geomean_speedup_or_one({"a": tries}, k).value) == pytest.approx(
        math.fsum(bests) / len(bests), abs=1e-9
    )


@calm
@given(many_results, st.integers(1, 5))
def test_fast_p_falls_with_p_and_rises_with_k(results: dict[str, list[Result]], k: int) -> None:
    values = [fast_p(results, p, k).value for p in THRESHOLDS]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert values == sorted(values, reverse=True)
    for p in THRESHOLDS:
        assert fast_p(results, p, k).value <= fast_p(results, p, k + 1).value + 1e-12


@calm
@given(many_results, st.integers(1, 5))
def test_an_unsolved_problem_lowers_every_share(results: dict[str, list[Result]], k: int) -> None:
    more = {**results, "never asked before": []}
    for p in THRESHOLDS:
        before = fast_p(results, p, k).value
        assert fast_p(more, p, k).value == pytest.approx(before * len(results) / len(more))


@calm
@given(many_results)
def test_intervals_are_ordered_and_within_what_problems_show(results: dict[str, list[Result]]) -> None:
    found = fast_p(results, 0.0, 1)
    assert found.interval is None or 0.0 <= found.interval.low <= found.interval.high <= 1.0 + 1e-12
