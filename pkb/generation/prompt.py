"""Prompts: Markdown templates rendered from public fields of a problem, and verdicts put into words for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pkb.generation.examples import Example, examples_for
from pkb.generation.extract import Extracted
from pkb.generation.profiles import get_machine
from pkb.judging.config import JudgeConfig
from pkb.problems._arguments import describe_arguments
from pkb.problems._spec import Problem, Size
from pkb.records.attempt import Backend
from pkb.records.verdict import Status, Verdict

_FOLDER = Path(__file__).parent / "prompts"
_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # Prompts are text for models: nothing is escaped for HTML.
    autoescape=False,
)


@dataclass(frozen=True)
class Budget:
    """What an agent may use up for one attempt."""

    steps: int = 30
    """Replies of the model."""
    tokens: int = 500_000
    """Tokens sent and received."""
    judge_seconds: int = 300
    """Wall time of building, checking and timing."""


def render_task(
    problem: Problem,
    config: JudgeConfig,
    *,
    backend: Backend,
    hardware: str,
    budget: Budget | None = None,
    examples: Sequence[Example] | None = None,
) -> str:
    """The first prompt of an attempt.

    Args:
        problem: what is asked.
        config: how answers are judged: world size, dtype and sizes are shown.
        backend: what the code is to be written in.
        hardware: name of a profile, such as `h200_8`.
        budget: of an agent; None asks for a file in the reply.
        examples: shown instead of shipped solutions.

    Raises:
        UsageError: no such profile or size, or the problem is not judged like this.
    """
    problem.require(config.world_size, config.dtype)
    shown = examples if examples is not None else examples_for(problem.id, backend)
    answer = "answer_agent.md" if budget else "answer_file.md"
    return _render(
        "task.md",
        problem=problem,
        reference=problem.reference_path.read_text(encoding="utf-8"),
        world_size=config.world_size,
        dtype=config.dtype,
        sizes=_sizes(problem, config),
        writable=(*problem.in_place, *problem.may_write),
        machine=get_machine(hardware),
        guide=_render(f"guide_{backend}.md").rstrip(),
        examples=shown,
        answer=_render(answer, arguments=problem.argument_names(), budget=budget).rstrip(),
    )


def render_feedback(verdict: Verdict | None, extracted: Extracted) -> str:
    """What a model is told of its last reply; the verdict is None where the reply held no code."""
    if verdict is None:
        return _render("feedback.md", extraction_reason=extracted.reason, verdict=None).strip() + "\n"
    return _render("feedback.md", extraction_reason="", verdict=verdict).strip() + "\n"


def render_next_turn(verdict: Verdict | None, extracted: Extracted) -> str:
    """The prompt behind a reply: what became of it, and a request for a better file."""
    correct = verdict is not None and verdict.status is Status.CORRECT
    return _render("next_turn.md", feedback=render_feedback(verdict, extracted).rstrip(), correct=correct)


def prompt_sha256(prompt: str) -> str:
    """Hash over a first prompt and all templates, those of later turns included."""
    digest = hashlib.sha256(prompt.encode())
    for path in sorted(_FOLDER.glob("*.md")):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _render(template: str, **values: Any) -> str:
    return _TEMPLATES.get_template(template).render(**values)


def _sizes(problem: Problem, config: JudgeConfig) -> list[dict[str, Any]]:
    """The sizes that are judged: the tiny ones and the one that is timed."""
    timed = problem.sizes_named(config.size)
    names = dict.fromkeys((*problem.sizes_named("tiny"), *timed))
    return [
        {
            "name": name,
            "dimensions": _dimensions(problem.sizes[name]),
            "timed": name in timed,
            "arguments": _arguments(problem, name, config) if name in timed else {},
        }
        for name in names
    ]


def _arguments(problem: Problem, size: str, config: JudgeConfig) -> Mapping[str, str]:
    return describe_arguments(problem, size, config.world_size, config.dtype) or {}


def _dimensions(size: Size) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in size.items() if name != "exact")


def _value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
