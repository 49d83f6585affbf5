"""A run: which model was asked what, and how its answers were judged. Written once, before the first call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, model_validator

from pkb.records.attempt import Backend, Mode
from pkb.records.base import Record


class RunProblem(Record):
    """What a report has to know of a problem to sort it."""

    id: str
    """Id of the problem: its folder name."""
    number: int
    """Number, for display only."""
    title: str
    """One line."""
    group: str
    """Group that it belongs to, such as `gemm`."""
    parallelism: str
    """Kind of parallelism that it comes from, such as `tp`."""
    sha256: str
    """Hash over the problem's two files."""


class Run(Record):
    """What was asked: the content of `run.json`. Attempts lie beside it, one line each, in `attempts.jsonl`."""

    schema_version: Literal[1] = 1
    """Changes when a field changes its meaning."""
    name: str = Field(min_length=1)
    """Name of the run: that of its folder when it was made."""
    model: str = Field(min_length=1)
    """The model, as the provider names it, with the provider before a slash."""
    mode: Mode
    """How the model was asked."""
    backend: Backend
    """What the code was to be written in."""
    hardware: str
    """Profile that the prompts described, such as `h200_8`."""
    problems: tuple[RunProblem, ...] = Field(min_length=1)
    """All problems that were asked, by number: what shares of problems are shares of."""
    attempts: int = Field(ge=1)
    """Attempts at each problem."""
    turns: int = Field(ge=1)
    """Most replies of an attempt."""
    world_size: int = Field(ge=1)
    """Number of ranks that answers were judged on, where a problem allows it."""
    dtype: Literal["bf16", "fp32"]
    """Working dtype that answers were judged in, where a problem allows it."""
    size: str
    """Size that was timed."""
    device: Literal["auto", "cuda", "shared-gpu", "cpu"]
    """How ranks were to be laid on devices; a verdict says how they were."""
    config_sha256: str
    """Hash over the judge's configuration."""
    sampling: dict[str, float] = Field(default_factory=dict)
    """Settings that the model was called with, such as `temperature` and `max_tokens`; empty for its defaults."""
    pkb: str
    """Version of pkb."""
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """When the run began."""

    @model_validator(mode="after")
    def _consistent(self) -> Run:
        ids = [problem.id for problem in self.problems]
        if len(set(ids)) != len(ids):
            raise ValueError("a problem is named twice")
        if self.mode is Mode.ZERO_SHOT and self.turns != 1:
            raise ValueError(f"zero-shot has one turn, not {self.turns}")
        return self
