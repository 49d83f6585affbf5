"""Tasks of Inspect AI, found by `inspect eval pkb/zero_shot`; each sample is one attempt."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from pkb.generation.loop import take_turns
from pkb.generation.prompt import prompt_sha256, render_task
from pkb.generation.referee import Referee, config_for
from pkb.generation.replay import replay
from pkb.generation.request import Request, begin_or_resume, name_of
from pkb.generation.session import Session, without_secrets
from pkb.judging.config import JudgeConfig
from pkb.problems._find import get_problem
from pkb.records.attempt import Attempt, Backend, Mode, Turn
from pkb.records.run_folder import RunFolder

__all__ = ["feedback", "replay", "zero_shot"]
_ATTEMPT = "attempt"
# The framework puts the package's name in front only where it finds it in site-packages: not in an editable
# install whose distribution has another name.
_PREFIX = "" if "site-packages" in Path(__file__).parts else "pkb/"


@task(name=f"{_PREFIX}zero_shot")
def zero_shot(
    problems: str = "all",
    attempts: int = 3,
    backend: str = "cuda",
    hardware: str = "h200_8",
    judge: dict[str, Any] | None = None,
    run: str = "",
) -> Task:
    """One reply an attempt.

    Args:
        problems: `all`, ids separated by commas, or `group:NAME`.
        attempts: attempts at each problem.
        backend: cuda, triton or torch.
        hardware: profile that prompts describe.
        judge: fields of JudgeConfig, such as `{world_size: 4}`.
        run: folder that records are written to; empty for the framework's log alone.
    """
    request = _request(Mode.ZERO_SHOT, problems, attempts, 1, backend, hardware, judge)
    return _task_of(request, run)


@task(name=f"{_PREFIX}feedback")
def feedback(
    problems: str = "all",
    attempts: int = 3,
    turns: int = 4,
    backend: str = "cuda",
    hardware: str = "h200_8",
    judge: dict[str, Any] | None = None,
    run: str = "",
) -> Task:
    """Several turns; each shows what became of the last reply. Arguments as in `zero_shot`; `turns` replies at most."""
    request = _request(Mode.FEEDBACK, problems, attempts, turns, backend, hardware, judge)
    return _task_of(request, run)


def task_of(session: Session) -> Task:
    """The task of a run: its attempts that have not ended yet."""
    wanted = session.open_attempts()
    prompts = {problem_id: _prompt(session, problem_id) for problem_id in dict.fromkeys(p for p, _ in wanted)}
    samples = [
        Sample(
            id=f"{problem_id}-{index}",
            input=prompts[problem_id],
            metadata={"problem": problem_id, "attempt": index},
        )
        for problem_id, index in wanted
    ]
    return Task(
        dataset=MemoryDataset(samples, name="pkb"),
        solver=attempt_problem(session),
        scorer=best_turn(),
        name=session.run.mode.replace("-", "_"),
    )


@solver
def attempt_problem(session: Session) -> Solver:
    """Makes one attempt and writes it down; an error ends the attempt, not the run."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        problem = get_problem(state.metadata["problem"])
        index, prompt, turns, error = state.metadata["attempt"], state.input_text, list[Turn](), ""
        try:
            state.messages = await take_turns(session, problem, index, prompt, _ask, turns)
        except Exception as failure:
            # Whatever a provider or the judge raises: this attempt is written down as not ended, the others go on.
            error = without_secrets(f"{type(failure).__name__}: {failure}")
        attempt = Attempt(
            run=session.run.name,
            model=session.run.model,
            problem=problem.id,
            problem_sha256=problem.sha256,
            mode=session.run.mode,
            backend=session.run.backend,
            hardware=session.run.hardware,
            index=index,
            prompt_sha256=prompt_sha256(prompt),
            turns=tuple(turns),
            error=error,
        )
        session.record(attempt)
        state.store.set(_ATTEMPT, attempt.model_dump(mode="json"))
        if attempt.best is not None:
            state.output = ModelOutput.from_content(session.run.model, attempt.best.reply)
        return state

    return solve


@scorer(metrics={"correct": [mean()], "solved": [mean()], "speedup": [mean()]})
def best_turn() -> Scorer:
    """Score of the turn that counts; the speedup of what is not correct is 0."""

    async def score(state: TaskState, target: Target) -> Score:
        attempt = Attempt.model_validate(state.store.get(_ATTEMPT))
        best = attempt.best
        verdict = best.verdict if best is not None else None
        correct = best is not None and best.is_correct
        return Score(
            value={
                "correct": int(correct),
                "solved": int(verdict is not None and verdict.solved),
                "speedup": (best.speedup or 0.0) if correct and best is not None else 0.0,
            },
            answer=best.code if best is not None else "",
            explanation=attempt.error or (str(verdict) if verdict is not None else "no code"),
        )

    return score


async def _ask(messages: list[ChatMessage]) -> ModelOutput:
    return await get_model().generate(messages)


def _prompt(session: Session, problem_id: str) -> str:
    problem = get_problem(problem_id)
    return render_task(
        problem,
        config_for(problem, session.config),
        backend=session.run.backend,
        hardware=session.run.hardware,
    )


def _request(
    mode: Mode, problems: str, attempts: int, turns: int, backend: str, hardware: str, judge: dict[str, Any] | None
) -> Request:
    return Request(
        model=str(get_model()),
        mode=mode,
        problems=problems,
        attempts=attempts,
        turns=turns,
        backend=Backend(backend),
        hardware=hardware,
        config=JudgeConfig.model_validate(judge or {}),
    )


def _task_of(request: Request, folder: str) -> Task:
    """The task of a request that came through the framework's own command."""
    run = request.to_run(name_of(Path(folder)) if folder else request.mode)
    run_folder = RunFolder(folder) if folder else None
    if run_folder is not None:
        run = begin_or_resume(run_folder, run)
    referee = Referee(request.config)
    # The framework tells a task of the end of each sample, not of its own.
    atexit.register(referee.close)
    return task_of(Session(run, request.config, referee.judge, run_folder))
