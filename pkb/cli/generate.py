"""`pkb generate`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from pkb.cli.main import EXIT_HARNESS
from pkb.judging.config import JudgeConfig
from pkb.records.attempt import Backend, Mode
from pkb.records.errors import UsageError

_JUDGE_FIELDS = ("trials", "rounds", "deadline_s", "isolation", "build_deadline_s")
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "max_tokens",
    "timeout",
    "attempt_timeout",
    "max_retries",
    "reasoning_tokens",
)


@click.command("generate")
@click.option("--model", default="", metavar="NAME", help="provider/name, such as openai/gpt-5.5.")
@click.option("--problems", default="all", show_default=True, metavar="LIST", help="all, ids with commas, group:NAME.")
@click.option("--attempts", type=click.IntRange(1), default=3, show_default=True, help="Attempts at each problem.")
@click.option("--turns", type=click.IntRange(1), default=1, show_default=True, help="Most replies of an attempt.")
@click.option(
    "--mode",
    type=click.Choice([Mode.ZERO_SHOT.value, Mode.FEEDBACK.value]),
    default=Mode.ZERO_SHOT.value,
    show_default=True,
)
@click.option(
    "--backend",
    type=click.Choice([backend.value for backend in Backend]),
    default=Backend.CUDA.value,
    show_default=True,
)
@click.option("--hardware", default="h200_8", show_default=True, metavar="PROFILE", help="What prompts describe.")
@click.option("--device", type=click.Choice(["auto", "cuda", "shared-gpu", "cpu"]), default="auto", show_default=True)
@click.option("--world-size", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of ranks.")
@click.option("--size", default="base", show_default=True, help="Size to time, and to check beside the tiny ones.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"Of judging: dtype, {', '.join(_JUDGE_FIELDS)}. Of the model: {', '.join(_SAMPLING_FIELDS)}.",
)
@click.option("--max-connections", type=click.IntRange(1), default=10, show_default=True, help="Calls at a time.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Recorded replies instead of a model.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="RUN", help="Folder of the run."
)
def command(
    model: str,
    problems: str,
    attempts: int,
    turns: int,
    mode: str,
    backend: str,
    hardware: str,
    device: str,
    world_size: int,
    size: str,
    settings: tuple[str, ...],
    max_connections: int,
    replay: Path | None,
    output: Path,
) -> int:
    """Ask a model for solutions and judge them. The same command again resumes a run that was ended.

    API keys are taken from the environment, such as OPENAI_API_KEY; they are written nowhere.
    """
    if not model and replay is None:
        raise UsageError("no model. Give --model provider/name, or --replay FILE.")
    if importlib.util.find_spec("inspect_ai") is None:
        raise UsageError("models need the extra `models`: pip install 'parallelkernelbench[models]'.")
    # Imported here: they take seconds, and `pkb generate --help` needs none of them.
    from pkb.generation.generate import generate
    from pkb.generation.request import Request

    judging, sampling = _settings(settings)
    request = Request(
        model=model or "replay/recorded",
        mode=Mode(mode),
        problems=problems,
        attempts=attempts,
        turns=turns,
        backend=Backend(backend),
        hardware=hardware,
        config=JudgeConfig.model_validate({"device": device, "world_size": world_size, "size": size, **judging}),
        sampling=sampling,
    )
    outcome = generate(
        request,
        output,
        replay=replay,
        max_connections=max_connections,
        display="full" if sys.stderr.isatty() else "none",
    )
    attempts_made = outcome.folder.attempts()
    correct = sum(attempt.best is not None and attempt.best.is_correct for attempt in attempts_made)
    click.echo(f"{outcome.folder.path}: {correct} of {len(attempts_made)} attempts correct")
    if outcome.num_unfinished:
        errors = sorted({attempt.error for attempt in attempts_made if attempt.error})
        click.echo(f"{outcome.num_unfinished} attempts did not end: {errors[0]}\nThe same command resumes.", err=True)
        return EXIT_HARNESS
    return 0


def _settings(settings: tuple[str, ...]) -> tuple[dict[str, str], dict[str, float]]:
    """Fields of the judge's configuration and of calls of the model."""
    judging: dict[str, str] = {}
    sampling: dict[str, float] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "dtype" or name in _JUDGE_FIELDS:
            judging[name] = value
        elif name in _SAMPLING_FIELDS:
            try:
                sampling[name] = float(value)
            except ValueError as error:
                raise UsageError(f"--set {setting}: expected a number, got {value!r}.") from error
        else:
            known = ", ".join(("dtype", *_JUDGE_FIELDS, *_SAMPLING_FIELDS))
            raise UsageError(f"--set {setting}: no setting {name!r}; there are {known}.")
    return judging, sampling
