"""What a model answered, turn by turn, and how each answer was judged."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from pkb.records.base import Record
from pkb.records.verdict import Status, Verdict


class Mode(StrEnum):
    """How a model is asked."""

    ZERO_SHOT = "zero-shot"
    """One reply an attempt."""
    FEEDBACK = "feedback"
    """Several turns; each but the first shows what was wrong with the last reply."""
    AGENT = "agent"
    """The model calls tools: write, build, check, time, read documentation."""


class Backend(StrEnum):
    """What the code of an answer is to be written in."""

    CUDA = "cuda"
    TRITON = "triton"
    TORCH = "torch"
    """Torch operators on symmetric memory."""


class Extraction(StrEnum):
    """Whether code was found in a reply."""

    FOUND = "found"
    NO_CODE = "no_code"
    TRUNCATED = "truncated"
    """The reply was cut off inside its code, or before it."""
    EMPTY = "empty"
    """The model said nothing."""


class Usage(Record):
    """What model calls took."""

    input_tokens: int = Field(default=0, ge=0)
    """Tokens sent, cached ones included."""
    output_tokens: int = Field(default=0, ge=0)
    """Tokens received, hidden reasoning included."""
    cost_usd: float | None = Field(default=None, ge=0)
    """Price in US dollars; None where no price is known."""
    seconds: float = Field(default=0.0, ge=0)
    """Wall time of the calls."""

    def __add__(self, other: Usage) -> Usage:
        """Both together; a price that is unknown makes the sum unknown."""
        costs = (self.cost_usd, other.cost_usd)
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
            seconds=self.seconds + other.seconds,
        )


class Turn(Record):
    """One reply of a model within an attempt."""

    index: int = Field(ge=0)
    """Number of the turn, from 0."""
    prompt: str
    """What the model was shown before this reply: the task in the first turn, feedback in later ones."""
    reply: str
    """The reply as it came."""
    extraction: Extraction
    """Whether the reply held code."""
    code: str = ""
    """The code that was judged; empty unless the extraction is `found`."""
    verdict: Verdict | None = None
    """How it was judged; None where there was no code."""
    usage: Usage = Usage()
    """What this reply took."""

    @model_validator(mode="after")
    def _consistent(self) -> Turn:
        if (self.extraction is Extraction.FOUND) != bool(self.code):
            raise ValueError(f"extraction is {self.extraction} and there is {'' if self.code else 'no '}code")
        if self.verdict is not None and not self.code:
            raise ValueError("a verdict on no code")
        return self

    @property
    def is_correct(self) -> bool:
        """The code was judged correct; that it builds is not enough."""
        return self.verdict is not None and self.verdict.is_scored and self.verdict.status is Status.CORRECT

    @property
    def speedup(self) -> float | None:
        """Speedup at the size that was judged; None without one."""
        timings = self.verdict.timings if self.verdict is not None else ()
        return timings[-1].speedup if timings else None


class Attempt(Record):
    """One independent try of a model at a problem: the k of pass@k."""

    schema_version: Literal[1] = 1
    """Changes when a field changes its meaning."""
    run: str
    """Name of the run that it belongs to."""
    model: str
    """The model, as the provider names it, with the provider before a slash."""
    problem: str
    """Id of the problem."""
    problem_sha256: str
    """Hash of the problem."""
    mode: Mode
    """How the model was asked."""
    backend: Backend
    """What the code was to be written in."""
    hardware: str
    """Profile that the prompt described, such as `h200_8`."""
    index: int = Field(ge=0)
    """Number of the attempt at this problem, from 0."""
    prompt_sha256: str
    """Hash of the prompt templates and of all that was rendered into the first prompt."""
    turns: tuple[Turn, ...]
    """All replies, in order; empty if the model could not be reached."""
    error: str = ""
    """Why the attempt ended before its time; empty if it did not."""
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """When it ended."""

    @property
    def usage(self) -> Usage:
        """What all its replies took."""
        total = Usage(cost_usd=0.0)
        for turn in self.turns:
            total = total + turn.usage
        return total

    @property
    def best(self) -> Turn | None:
        """The turn that the attempt is judged by; None if it cannot be scored.

        It is the fastest solved turn, else the fastest correct one, else the last that was judged, else the last.
        Turns on which the judge failed, or for which it only built, do not count.
        """
        scored = [turn for turn in self.turns if turn.verdict is not None and turn.verdict.is_scored]
        solved = [turn for turn in scored if turn.verdict is not None and turn.verdict.solved]
        correct = solved or [turn for turn in scored if turn.is_correct]
        if correct:
            return max(correct, key=lambda turn: (turn.speedup or 0.0, -turn.index))
        if scored:
            return scored[-1]
        # A reply without code is no answer to one that the judge failed on.
        unjudged = any(turn.verdict is not None for turn in self.turns)
        return None if unjudged or not self.turns else self.turns[-1]
