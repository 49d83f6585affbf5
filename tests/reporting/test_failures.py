"""Each attempt is of one kind, named by the turn that counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pkb.records.attempt import Attempt
from pkb.records.verdict import CAUSES_OF, Status
from pkb.reporting.failures import FAMILY_OF, MEANINGS, Family, Kind, kind_of, shares

MakeAttempt = Callable[..., Attempt]
PAGE = Path(__file__).parents[2] / "docs" / "scores.md"


@pytest.mark.parametrize(
    ("status", "cause", "kind"),
    [
        ("build_failed", "syntax", Kind.SYNTAX),
        ("build_failed", "arity", Kind.INTERFACE),
        ("build_failed", "no_solution", Kind.INTERFACE),
        ("build_failed", "compile", Kind.COMPILE),
        ("build_failed", "import", Kind.LAUNCH),
        ("build_failed", "deadlock", Kind.HANG),
        ("crashed", "exception", Kind.LAUNCH),
        ("crashed", "out_of_memory", Kind.LAUNCH),
        ("hung", "deadlock", Kind.HANG),
        ("mutated_input", "mutated", Kind.WRONG_NUMBERS),
        ("wrong", "missing_rank", Kind.RANK_COORDINATION),
        ("wrong", "ranks_differ", Kind.RANK_COORDINATION),
        ("wrong", "sharding_axis", Kind.RANK_COORDINATION),
        ("wrong", "reduction_op", Kind.WRONG_NUMBERS),
        ("wrong", "race", Kind.RACE),
        ("wrong", "stale", Kind.RACE),
        ("wrong", "precision", Kind.WRONG_NUMBERS),
        ("wrong", "scaled", Kind.WRONG_NUMBERS),
        ("refused", "too_fast", Kind.REFUSED),
        ("invalid", "harness", Kind.NOT_SCORED),
    ],
)
def test_a_failure_is_of_the_kind_of_its_cause(make_attempt: MakeAttempt, status: str, cause: str, kind: Kind) -> None:
    assert kind_of(make_attempt(status, cause=cause)) is kind


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.CORRECT])
def test_every_cause_has_a_kind(make_attempt: MakeAttempt, status: Status) -> None:
    for cause in CAUSES_OF[status]:
        family = FAMILY_OF[kind_of(make_attempt(status.value, cause=cause.value))]
        assert family is not Family.SOLVED


@pytest.mark.parametrize(
    ("status", "cause", "log", "kind"),
    [
        ("build_failed", "import", "ImportError: k.so: undefined symbol: _Z6launchv", Kind.LINK),
        ("build_failed", "import", "ModuleNotFoundError: No module named 'deep_ep'", Kind.LINK),
        ("build_failed", "import", "ValueError: no such shape", Kind.LAUNCH),
        ("build_failed", "compile", "k.cu(3): error: identifier x is undefined", Kind.COMPILE),
        ("build_failed", "compile", "error: Undefined reference to 'f' in 'k'", Kind.LINK),
        (
            "build_failed",
            "import",
            "RuntimeError: Error building extension 'k': k.cu(1): error: expected ;",
            Kind.COMPILE,
        ),
        ("crashed", "exception", "RuntimeError: Error building extension 'k': ld returned 1 exit status", Kind.LINK),
        ("crashed", "exception", "ModuleNotFoundError: No module named 'x'", Kind.LAUNCH),
    ],
)
def test_linking_is_told_from_compiling_by_what_was_printed(
    make_attempt: MakeAttempt, status: str, cause: str, log: str, kind: Kind
) -> None:
    assert kind_of(make_attempt(status, cause=cause, log=log)) is kind


def test_correct_attempts_are_told_apart(make_attempt: MakeAttempt) -> None:
    assert kind_of(make_attempt(speedup=1.2)) is Kind.FAST
    assert kind_of(make_attempt(speedup=1.0)) is Kind.SLOW
    assert kind_of(make_attempt()) is Kind.UNTIMED
    assert kind_of(make_attempt(speedup=3.0, library=True)) is Kind.LIBRARY_FALLBACK
    assert kind_of(make_attempt(speedup=3.0, solution_class=None)) is Kind.LIBRARY_FALLBACK
    assert kind_of(make_attempt(build_only=True)) is Kind.NOT_SCORED


@pytest.mark.parametrize("reply", ["no_code", "truncated", "empty"])
def test_a_reply_without_code(make_attempt: MakeAttempt, reply: str) -> None:
    assert kind_of(make_attempt(reply)) is Kind.NO_CODE


def test_a_model_that_was_not_reached_is_not_scored(make_attempt: MakeAttempt) -> None:
    assert kind_of(make_attempt(turns=[])) is Kind.NOT_SCORED


def test_a_solved_turn_counts_before_a_faster_one_by_the_library(make_attempt: MakeAttempt, make_turn) -> None:
    turns = [make_turn(speedup=3.0, library=True), make_turn(speedup=0.5, index=1), make_turn("wrong", index=2)]
    attempt = make_attempt(turns=turns)
    assert attempt.best == turns[1]
    assert kind_of(attempt) is Kind.SLOW


def test_a_failure_of_the_judge_hides_no_other_turn(make_attempt: MakeAttempt, make_turn) -> None:
    turns = [make_turn("wrong", cause="race"), make_turn("invalid", index=1)]
    assert kind_of(make_attempt(turns=turns)) is Kind.RACE
    unjudged = [make_turn("no_code"), make_turn("invalid", index=1)]
    assert kind_of(make_attempt(turns=unjudged)) is Kind.NOT_SCORED


def test_what_only_builds_is_neither_correct_nor_scored(make_attempt: MakeAttempt, make_turn) -> None:
    wrong, built = make_turn("wrong"), make_turn(index=1, build_only=True)
    assert not built.is_correct
    assert make_attempt(turns=[built]).best is None
    assert make_attempt(turns=[wrong, built]).best == wrong


def test_shares_leave_out_what_was_not_scored(make_attempt: MakeAttempt) -> None:
    tries = [make_attempt(speedup=2.0), make_attempt("no_code"), make_attempt("no_code"), make_attempt("invalid")]
    found = shares(tries)
    assert found[Kind.FAST] == pytest.approx(1 / 3)
    assert found[Kind.NO_CODE] == pytest.approx(2 / 3)
    assert sum(found.values()) == pytest.approx(1.0)
    assert not any(shares([]).values())


def test_the_page_of_scores_names_every_kind_with_its_meaning() -> None:
    text = PAGE.read_text()
    for kind in Kind:
        assert f"| {kind} | {MEANINGS[kind]} |" in text
