"""Options that `judge` and `baseline` share, and the configuration they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pkb.judging.config import JudgeConfig

Command = Callable[..., Any]


def judging_options(command: Command) -> Command:
    """Add the options that say how to judge; they arrive as keyword arguments for `config_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def config_of(**settings: Any) -> JudgeConfig:
    """The configuration that the options name; all are fields of it, and `deadline` is in seconds."""
    return JudgeConfig.model_validate({_FIELDS.get(name, name): value for name, value in settings.items()})


def _default(name: str) -> Any:
    return JudgeConfig.model_fields[name].default


_FIELDS = {"deadline": "deadline_s"}
_OPTIONS = (
    click.option(
        "--device",
        type=click.Choice(["auto", "cuda", "shared-gpu", "cpu"]),
        default=_default("device"),
        show_default=True,
        help="auto: a GPU for each rank, else one GPU for all, else the CPU.",
    ),
    click.option(
        "--world-size",
        type=click.IntRange(1, 64),
        default=_default("world_size"),
        show_default=True,
        help="Number of ranks.",
    ),
    click.option(
        "--size",
        default=_default("size"),
        show_default=True,
        help="Size to time, and to check beside the tiny ones.",
    ),
    click.option("--dtype", type=click.Choice(["bf16", "fp32"]), default=_default("dtype"), show_default=True),
    click.option(
        "--trials",
        type=click.IntRange(1),
        default=_default("trials"),
        show_default=True,
        help="Correctness draws.",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(0),
        default=_default("rounds"),
        show_default=True,
        help="Timed blocks of each side; 0 for no timing.",
    ),
    click.option(
        "--deadline",
        type=click.FloatRange(0, min_open=True),
        default=_default("deadline_s"),
        show_default=True,
        help="Seconds that a trial or a timed block may take.",
    ),
    click.option(
        "--isolation",
        type=click.Choice(["auto", "off", "required"]),
        default=_default("isolation"),
        show_default=True,
        help="Run candidates in a sandbox: where the system allows it, never, or not without.",
    ),
)
