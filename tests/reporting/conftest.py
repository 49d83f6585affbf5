"""Attempts and runs, made from a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pkb.records.attempt import Attempt, Extraction, Turn, Usage
from pkb.records.run import Run, RunProblem
from pkb.records.run_folder import RunFolder
from pkb.records.verdict import DeviceMode, Failure, Phase, Status, Timing, Verdict

MakeTurn = Callable[..., Turn]
MakeAttempt = Callable[..., Attempt]


@pytest.fixture
def make_turn(make_verdict: Callable[..., Verdict]) -> MakeTurn:
    """A turn: `make_turn("wrong", cause="race")`, `make_turn("correct", speedup=2.0)`, `make_turn("no_code")`."""

    def make(status: str = "correct", *, index: int = 0, cause: str = "", speedup: float | None = None, **fields: Any):
        usage = Usage(input_tokens=1000, output_tokens=200, cost_usd=0.01)
        said = {"index": index, "prompt": "write it", "reply": "here it is", "usage": usage}
        if status in set(Extraction) - {Extraction.FOUND}:
            return Turn(**said, extraction=status)
        if cause:
            detail = fields.pop("detail", "planted")
            fields["failure"] = Failure(phase=Phase.CHECK, cause=cause, detail=detail, log=fields.pop("log", ""))
        if speedup is not None:
            fields["timings"] = (
                Timing(size="base", candidate_us=100.0 / speedup, baseline_us=100.0, speedup=speedup, iterations=10,
                       sol_us=20.0, sol_bound="link"),
            )  # fmt: skip
        elif status == "correct":
            fields.setdefault("device", DeviceMode.SHARED_GPU)
        return Turn(**said, extraction="found", code="def solution(): ...\n", verdict=make_verdict(status, **fields))

    return make


@pytest.fixture
def make_attempt(make_turn: MakeTurn) -> MakeAttempt:
    """An attempt of one turn, or of the turns given."""

    def make(
        *args: Any, problem: str = "allreduce", number: int = 0, turns: Sequence[Turn] | None = None, **fields: Any
    ):
        return Attempt(
            run="one",
            model="mock/model",
            problem=problem,
            problem_sha256="0" * 64,
            mode="feedback",
            backend="cuda",
            hardware="h200_8",
            index=number,
            prompt_sha256="0" * 64,
            turns=(make_turn(*args, **fields),) if turns is None else tuple(turns),
        )

    return make


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A run that asked the given problems."""

    def make(problems: Sequence[str] = ("allreduce", "allgather"), **fields: Any) -> Run:
        base: dict[str, Any] = {
            "name": "one",
            "model": "mock/model",
            "mode": "zero-shot",
            "backend": "cuda",
            "hardware": "h200_8",
            "problems": tuple(
                RunProblem(id=name, number=number, title=f"About {name}", group=f"group{number % 2}",
                           parallelism="tp / sp" if number % 2 else "dp", sha256="0" * 64)
                for number, name in enumerate(problems, start=1)
            ),
            "attempts": 3,
            "turns": 1,
            "world_size": 4,
            "dtype": "bf16",
            "size": "base",
            "device": "auto",
            "config_sha256": "0" * 64,
            "pkb": "0.1.0",
        }  # fmt: skip
        return Run(**{**base, **fields})

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run with its attempts; returns its folder."""

    def write(run: Run, attempts: Sequence[Attempt]) -> Path:
        folder = RunFolder(tmp_path / run.name)
        folder.create(run)
        for attempt in attempts:
            folder.append(attempt.model_copy(update={"run": run.name}))
        return folder.path

    return write


def statuses() -> list[Status]:
    """All statuses of a failure that counts."""
    return [status for status in Status if status not in (Status.CORRECT, Status.INVALID)]
