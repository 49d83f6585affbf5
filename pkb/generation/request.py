"""What a user asks of a run, and the record of it; the same request again resumes the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pkb.generation.profiles import get_machine
from pkb.judging.config import JudgeConfig
from pkb.problems._find import get_problem, list_problems
from pkb.problems._spec import Problem
from pkb.records.attempt import Backend, Mode
from pkb.records.errors import UsageError
from pkb.records.run import Run, RunProblem
from pkb.records.run_folder import RunFolder


@dataclass(frozen=True)
class Request:
    """A run that is asked for."""

    model: str
    mode: Mode = Mode.ZERO_SHOT
    problems: str = "all"
    """`all`, ids separated by commas, or `group:NAME`."""
    attempts: int = 3
    turns: int = 1
    backend: Backend = Backend.CUDA
    hardware: str = "h200_8"
    config: JudgeConfig = field(default_factory=JudgeConfig)
    sampling: dict[str, float] = field(default_factory=dict)

    def to_run(self, name: str) -> Run:
        """The record of this request.

        Raises:
            UsageError: no such problem or hardware profile, or turns that the mode does not have.
        """
        if self.mode is Mode.ZERO_SHOT and self.turns != 1:
            raise UsageError(f"zero-shot has one turn, asked for {self.turns}. Use --mode feedback.")
        get_machine(self.hardware)
        problems = select_problems(self.problems)
        for problem in problems:
            problem.sizes_named(self.config.size)
        return Run(
            name=name,
            model=self.model,
            mode=self.mode,
            backend=self.backend,
            hardware=self.hardware,
            problems=tuple(map(_run_problem, problems)),
            attempts=self.attempts,
            turns=self.turns,
            world_size=self.config.world_size,
            dtype=self.config.dtype,
            size=self.config.size,
            device=self.config.device,
            config_sha256=self.config.sha256,
            sampling=self.sampling,
            pkb=version("parallelkernelbench"),
        )


def select_problems(text: str) -> list[Problem]:
    """Problems by number: `all`, ids, numbers or prefixes separated by commas, or `group:NAME`.

    Raises:
        UsageError: there is no such problem or group.
    """
    if text == "all":
        return list_problems()
    if text.startswith("group:"):
        return list_problems(group=text.removeprefix("group:"))
    found = {problem.id: problem for problem in map(get_problem, filter(None, text.split(",")))}
    if not found:
        raise UsageError(f"no problem in {text!r}. Give all, ids separated by commas, or group:NAME.")
    return sorted(found.values(), key=lambda problem: problem.number)


def begin_or_resume(folder: RunFolder, run: Run) -> Run:
    """Begin a run in a folder, or go on with the one that is there if it was asked for in the same way.

    Raises:
        UsageError: the folder holds another run; the message names the first field that differs.
    """
    if not folder.exists():
        folder.create(run)
        return run
    there = folder.run()
    for name in Run.model_fields:
        if name not in ("name", "created", "pkb") and getattr(there, name) != getattr(run, name):
            raise UsageError(
                f"{folder.path}: holds a run with other {name}: {_short(getattr(there, name))}, asked for"
                f" {_short(getattr(run, name))}. Ask as before to resume it, or give another folder."
            )
    return there


def name_of(folder: Path) -> str:
    """Name of the run in a folder."""
    return folder.resolve().name


def _run_problem(problem: Problem) -> RunProblem:
    return RunProblem(
        id=problem.id,
        number=problem.number,
        title=problem.title,
        group=problem.group,
        parallelism=problem.parallelism,
        sha256=problem.sha256,
    )


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} problems" if len(value) > 3 else ", ".join(problem.id for problem in value)
    return str(value)
