"""A file of recorded replies: JSON Lines, one reply a line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pkb.generation.journal import Key
from pkb.records.base import Record
from pkb.records.errors import UsageError
from pkb.records.run_folder import parse, whole_lines


class RecordedReply(Record):
    """What a model said at one place of a run."""

    problem: str
    """Id of the problem."""
    attempt: int = Field(ge=0)
    """Number of the attempt, from 0."""
    turn: int = Field(default=0, ge=0)
    """Number of the reply within the attempt, from 0."""
    reply: str
    """Its text."""
    stop_reason: Literal["stop", "max_tokens"] = "stop"
    """Whether it ended by itself or was cut off."""
    input_tokens: int = Field(default=0, ge=0)
    """Tokens sent."""
    output_tokens: int = Field(default=0, ge=0)
    """Tokens received."""

    @property
    def key(self) -> Key:
        """Where it belongs."""
        return Key(self.problem, self.attempt, self.turn)


def read_replies(file: Path) -> dict[Key, RecordedReply]:
    """All replies of a file.

    Raises:
        UsageError: there is no such file, it holds none, or a line is no reply.
    """
    if not file.is_file():
        raise UsageError(f"{file}: no such file. Give a .jsonl file of recorded replies.")
    found = {}
    for number, line in whole_lines(file):
        recorded = parse(RecordedReply, line, where=f"{file}:{number}")
        found[recorded.key] = recorded
    if not found:
        raise UsageError(f"{file}: holds no replies. Each line must be one, with its end.")
    return found
