"""Folder of a run: what was written stays, whatever ends the writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from pkb.records.attempt import Attempt, Backend, Extraction, Mode, Turn
from pkb.records.errors import UsageError
from pkb.records.jsonl import append, load
from pkb.records.run import Run, RunProblem
from pkb.records.run_folder import RunFolder
from pkb.records.verdict import Verdict

PROBLEM = RunProblem(
    id="allreduce", number=1, title="All-reduce", group="collective", parallelism="any", sha256="0" * 64
)


def make_run(**fields: object) -> Run:
    base = {
        "name": "mine",
        "model": "openai/some",
        "mode": Mode.ZERO_SHOT,
        "backend": Backend.CUDA,
        "hardware": "h200_8",
        "problems": (PROBLEM,),
        "attempts": 2,
        "turns": 1,
        "world_size": 2,
        "dtype": "bf16",
        "size": "base",
        "device": "cpu",
        "config_sha256": "0" * 64,
        "pkb": "0.1.0",
    }
    return Run.model_validate({**base, **fields})


def make_attempt(index: int) -> Attempt:
    return Attempt(
        run="mine",
        model="openai/some",
        problem="allreduce",
        problem_sha256="0" * 64,
        mode=Mode.ZERO_SHOT,
        backend=Backend.CUDA,
        hardware="h200_8",
        index=index,
        prompt_sha256="1" * 64,
        turns=(Turn(index=0, prompt="p", reply="r", extraction=Extraction.NO_CODE),),
    )


def test_a_run_and_its_attempts_are_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "mine")
    assert not folder.exists()
    folder.create(make_run())
    for index in range(2):
        folder.append(make_attempt(index))
    assert folder.exists() and folder.logs.is_dir()
    assert folder.run() == make_run(created=folder.run().created)
    assert [attempt.index for attempt in folder.attempts()] == [0, 1]


def test_a_run_is_not_begun_twice(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_run())
    with pytest.raises(UsageError, match="holds a run already"):
        folder.create(make_run())


def test_a_line_that_a_kill_cut_off_is_no_attempt_and_the_next_one_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_run())
    folder.append(make_attempt(0))
    with (tmp_path / "attempts.jsonl").open("a") as out:
        out.write(make_attempt(1).model_dump_json()[:100])
    assert [attempt.index for attempt in folder.attempts()] == [0]
    folder.append(make_attempt(1))
    assert [attempt.index for attempt in folder.attempts()] == [0, 1]


def test_an_attempt_that_was_made_anew_counts_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_run())
    folder.append(make_attempt(0).model_copy(update={"error": "no answer"}))
    folder.append(make_attempt(1))
    folder.append(make_attempt(0))
    assert [(attempt.index, attempt.error) for attempt in folder.attempts()] == [(1, ""), (0, "")]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_run())
    (tmp_path / "attempts.jsonl").write_text('{"run": 3}\n')
    with pytest.raises(UsageError, match=r"attempts\.jsonl:1: not a record of kind Attempt"):
        folder.attempts()


def test_a_folder_without_a_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pkb generate -o"):
        RunFolder(tmp_path).run()


@pytest.mark.parametrize("fields", [{"turns": 2}, {"problems": (PROBLEM, PROBLEM)}, {"problems": ()}])
def test_impossible_runs_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_run(**fields)


def test_verdicts_of_a_run_are_loaded_once_and_beside_others(
    tmp_path: Path, make_verdict: Callable[..., Verdict]
) -> None:
    wrong, right, alone = make_verdict("wrong"), make_verdict(), make_verdict("hung")
    turns = (
        Turn(index=0, prompt="p", reply="r", extraction=Extraction.NO_CODE),
        Turn(index=1, prompt="p", reply="r", extraction=Extraction.FOUND, code="a = 1", verdict=wrong),
        Turn(index=2, prompt="p", reply="r", extraction=Extraction.FOUND, code="a = 2", verdict=right),
    )
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.create(make_run(mode=Mode.FEEDBACK, turns=3))
    folder.append(make_attempt(0).model_copy(update={"turns": turns}))
    append(folder.path / "journal" / "verdicts.jsonl", wrong)
    append(tmp_path / "runs" / "z.jsonl", alone)
    assert load(folder.path) == load(folder.path / "attempts.jsonl") == [wrong, right]
    assert load(tmp_path / "runs") == [wrong, right, alone]
