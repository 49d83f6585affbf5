"""Runs from recorded replies: turns, errors that end one attempt only, and resuming."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pkb.judging.config import JudgeConfig
from pkb.problems._spec import Problem
from pkb.records.attempt import Backend, Extraction, Mode
from pkb.records.errors import UsageError
from pkb.records.verdict import Verdict

pytest.importorskip("inspect_ai", reason="needs the extra `models`")

from pkb.generation.generate import generate
from pkb.generation.referee import Level
from pkb.generation.request import Request

pytestmark = pytest.mark.filterwarnings("ignore")
RIGHT = "```python\ndef solution(tensor):\n    return tensor  # right\n```\n"
WRONG = "```python\ndef solution(tensor):\n    return tensor  # wrong\n```\n"


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Inspect leaves streams open; what they warn of when they are collected must not fall upon another test."""
    yield
    gc.collect()


def record(file: Path, *replies: tuple[str, int, int, str]) -> Path:
    names = ("problem", "attempt", "turn", "reply")
    file.write_text("".join(json.dumps(dict(zip(names, reply, strict=True))) + "\n" for reply in replies))
    return file


def request(**fields: object) -> Request:
    base = {"model": "replay/recorded", "problems": "allreduce", "attempts": 2, "backend": Backend.TORCH}
    return Request(**{**base, "config": JudgeConfig(device="cpu"), **fields})  # type: ignore[arg-type]


class Judge:
    """Finds what says that it is right correct; counts what it is asked."""

    def __init__(self, make_verdict: Callable[..., Verdict]) -> None:
        self.make_verdict = make_verdict
        self.num_judged = 0

    async def __call__(self, problem: Problem, code: str, level: Level) -> Verdict:
        self.num_judged += 1
        return self.make_verdict("correct" if "right" in code else "wrong", problem=problem.id)


@pytest.fixture
def judge(make_verdict: Callable[..., Verdict]) -> Judge:
    return Judge(make_verdict)


def test_each_attempt_is_judged_and_written_down(tmp_path: Path, judge: Judge) -> None:
    replies = record(tmp_path / "r.jsonl", ("allreduce", 0, 0, RIGHT), ("allreduce", 1, 0, "I cannot."))
    outcome = generate(request(), tmp_path / "run", replay=replies, display="none", judge_code=judge)
    attempts = {attempt.index: attempt for attempt in outcome.folder.attempts()}
    assert (outcome.num_made, outcome.num_unfinished) == (2, 0)
    assert attempts[0].best is not None and attempts[0].best.is_correct
    assert attempts[1].turns[0].extraction is Extraction.NO_CODE and judge.num_judged == 1
    assert list(outcome.folder.logs.glob("*.eval"))


def test_feedback_shows_the_verdict_and_the_next_reply_fixes_it(tmp_path: Path, judge: Judge) -> None:
    replies = record(tmp_path / "r.jsonl", ("allreduce", 0, 0, WRONG), ("allreduce", 0, 1, RIGHT))
    asked = request(mode=Mode.FEEDBACK, turns=2, attempts=1)
    outcome = generate(asked, tmp_path / "run", replay=replies, display="none", judge_code=judge)
    (attempt,) = outcome.folder.attempts()
    assert [turn.is_correct for turn in attempt.turns] == [False, True]
    assert "planted" in attempt.turns[1].prompt
    assert attempt.best == attempt.turns[1]


def test_an_error_ends_one_attempt_and_the_run_resumes_without_a_second_judgement(tmp_path: Path, judge: Judge) -> None:
    file = tmp_path / "r.jsonl"
    asked = request(mode=Mode.FEEDBACK, turns=2)
    replies = [("allreduce", 0, 0, WRONG), ("allreduce", 0, 1, RIGHT), ("allreduce", 1, 0, WRONG)]
    record(file, *replies)
    first = generate(asked, tmp_path / "run", replay=file, display="none", judge_code=judge)
    assert (first.num_unfinished, judge.num_judged) == (1, 3)
    assert "no reply 1 of attempt 1" in {attempt.index: attempt for attempt in first.folder.attempts()}[1].error
    # The first reply is not asked for again: it is not even in the file.
    record(file, ("allreduce", 1, 1, RIGHT))
    second = generate(asked, tmp_path / "run", replay=file, display="none", judge_code=judge)
    assert (second.num_made, second.num_unfinished, judge.num_judged) == (1, 0, 4)
    last = second.folder.attempts()[-1]
    assert [turn.is_correct for turn in last.turns] == [False, True] and not last.error


def test_another_request_does_not_go_into_the_same_folder(tmp_path: Path, judge: Judge) -> None:
    replies = record(tmp_path / "r.jsonl", ("allreduce", 0, 0, RIGHT))
    generate(request(attempts=1), tmp_path / "run", replay=replies, display="none", judge_code=judge)
    with pytest.raises(UsageError, match="holds a run with other attempts: 1, asked for 2"):
        generate(request(), tmp_path / "run", replay=replies, display="none", judge_code=judge)


def test_keys_are_blotted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from pkb.generation.session import without_secrets

    monkeypatch.setenv("SOME_API_KEY", "sk-1234567")
    assert without_secrets("Incorrect API key: sk-1234567") == "Incorrect API key: <SOME_API_KEY>"
