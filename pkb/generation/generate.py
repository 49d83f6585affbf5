"""Runs a request from its first call to its last record, or resumes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inspect_ai import eval as inspect_eval
from inspect_ai.model import GenerateConfig, Model, get_model

from pkb.generation.referee import JudgeCode, Referee
from pkb.generation.request import Request, begin_or_resume, name_of
from pkb.generation.session import Session
from pkb.generation.tasks import task_of
from pkb.records.errors import HarnessError
from pkb.records.run import Run
from pkb.records.run_folder import RunFolder


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: Run
    folder: RunFolder
    num_made: int
    """Attempts that were made this time."""
    num_unfinished: int
    """Attempts that an error ended; the same request again makes them anew."""


def generate(
    request: Request,
    folder: Path,
    *,
    replay: Path | None = None,
    max_connections: int = 10,
    display: str = "plain",
    judge_code: JudgeCode | None = None,
) -> Outcome:
    """Make all attempts of a request that have not ended yet.

    Args:
        request: what is asked.
        folder: where records go; a run that is there is resumed.
        replay: recorded replies that stand for the model.
        max_connections: calls of the model at the same time.
        display: of the evaluation framework: full, plain or none.
        judge_code: judges instead of this machine's judge.

    Raises:
        UsageError: the request cannot be met, or the folder holds another run.
        HarnessError: the evaluation framework failed.
    """
    run = request.to_run(name_of(folder))
    sampling = GenerateConfig.model_validate({**request.sampling, "max_connections": max_connections})
    model = _model(request.model, replay, sampling)
    run_folder = RunFolder(folder)
    run = begin_or_resume(run_folder, run)
    with Referee(request.config) as referee:
        session = Session(run, request.config, judge_code or referee.judge, run_folder)
        num_open = len(session.open_attempts())
        if num_open:
            (log,) = inspect_eval(
                task_of(session),
                model=model,
                log_dir=str(run_folder.logs),
                display=display,
                max_samples=4 * max_connections,
                fail_on_error=False,
            )
            if log.status != "success":
                raise HarnessError(f"the evaluation ended as {log.status}: {log.error.message if log.error else ''}")
        return Outcome(run, run_folder, num_open, len(session.open_attempts()))


def _model(name: str, replay: Path | None, sampling: GenerateConfig) -> Model:
    if replay is not None:
        return get_model("replay/recorded", config=sampling, replies=str(replay), memoize=False)
    return get_model(name, config=sampling, memoize=False)
