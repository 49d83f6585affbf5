"""Verdicts cannot contradict themselves, and survive a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from pkb.records.errors import UsageError
from pkb.records.jsonl import load
from pkb.records.verdict import CAUSES_OF, Cause, DeviceMode, Failure, Interval, Phase, Status, Timing, Trial, Verdict

MakeVerdict = Callable[..., Verdict]
TIMED = Timing(
    size="large",
    candidate_us=100.0,
    baseline_us=183.0,
    speedup=1.83,
    speedup_interval=Interval(low=1.8, high=1.9),
    iterations=10,
    sol_us=41.0,
    sol_bound="link",
)


def test_correct_in_one_line(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(timings=(TIMED,))
    assert str(verdict) == (
        "correct, 1.83x the NCCL baseline, 41 % of speed of light (4 ranks, NVIDIA H200, size large)"
    )


def test_failure_in_one_line(make_verdict: MakeVerdict) -> None:
    failure = Failure(phase=Phase.CHECK, cause=Cause.MISSING_RANK, detail="rank 1 is missing")
    verdict = make_verdict("wrong", failure=failure)
    assert str(verdict) == "wrong [missing_rank] (4 ranks, cuda, bf16): rank 1 is missing"


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        ("correct", {"failure": Failure(phase=Phase.CHECK, cause=Cause.ZEROS, detail="x")}),
        ("wrong", {"failure": None}),
        ("wrong", {"failure": Failure(phase=Phase.CHECK, cause=Cause.SYNTAX, detail="x")}),
        ("wrong", {"timings": (TIMED,)}),
        ("correct", {"trials": ()}),
        ("correct", {"trials": (Trial(size="tiny", index=0, exact=False, num_calls=1, passed=False),)}),
        ("correct", {"device": DeviceMode.SHARED_GPU, "timings": (TIMED,)}),
        ("correct", {"unknown_field": 1}),
    ],
)
def test_contradictions_are_refused(make_verdict: MakeVerdict, status: str, fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_verdict(status, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": "a", "candidate_us": 1.0, "speedup": 2.0, "iterations": 1},
        {"size": "a", "candidate_us": 0.0, "iterations": 1},
        {"size": "a", "candidate_us": float("nan"), "iterations": 1},
        {"size": "a", "candidate_us": 1.0, "iterations": 0},
    ],
)
def test_impossible_times_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Timing.model_validate(fields)


def test_reversed_interval_is_refused() -> None:
    with pytest.raises(ValidationError, match="reversed"):
        Interval(low=2.0, high=1.0)


def test_every_cause_belongs_to_a_status() -> None:
    assert set().union(*CAUSES_OF.values()) == set(Cause)
    assert set(CAUSES_OF) == set(Status) - {Status.CORRECT}


def test_library_solution_is_correct_but_not_solved(make_verdict: MakeVerdict) -> None:
    assert make_verdict(library=False).solved
    assert not make_verdict(library=True).solved
    assert make_verdict(solution_class="hybrid", library=False).solved
    assert not make_verdict(solution_class="hybrid", library=True).solved
    assert not make_verdict(solution_class=None).solved, "not observed is not solved"
    assert not make_verdict("wrong").solved
    assert not make_verdict(build_only=True, trials=()).solved


def test_round_trip_through_files(make_verdict: MakeVerdict, tmp_path: Path) -> None:
    first, second = make_verdict(timings=(TIMED,)), make_verdict("hung")
    first.save(tmp_path / "runs" / "a.jsonl")
    second.save(tmp_path / "runs" / "a.jsonl")
    second.save(tmp_path / "runs" / "deep" / "b.jsonl")
    assert load(tmp_path / "runs" / "a.jsonl") == [first, second]
    assert load(tmp_path / "runs") == [first, second, second]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1, "problem": "x"}', "not a verdict record"),
    ],
)
def test_broken_line_is_named(tmp_path: Path, make_verdict: MakeVerdict, line: str, message: str) -> None:
    file = tmp_path / "a.jsonl"
    make_verdict().save(file)
    with file.open("a") as out:
        out.write(line + "\n")
    with pytest.raises(UsageError, match=message) as caught:
        load(file)
    assert f"{file}:2" in str(caught.value)


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        load(tmp_path / "none")
