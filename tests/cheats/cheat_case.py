"""What the corpus of cheats says of one file: what it must get, and the honest twin that must not get it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pkb.judging.config import JudgeConfig
from pkb.records.verdict import Cause, Status

CHEATS = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A dishonest or broken solution file, and honest work that looks like it."""

    entry: str
    """Entry of docs/threat-model.md, such as `V8`."""
    file: str
    """The cheat, relative to tests/cheats."""
    twin: str
    """Honest work of the same form that must stay correct, relative to tests/cheats."""
    problem: str
    status: frozenset[Status]
    """What the cheat must get: one of these, never `correct`. Empty if it must be correct and marked `library`."""
    causes: frozenset[Cause] = frozenset()
    """If not empty, the failure must name one of these."""
    device: Literal["cpu", "shared-gpu"] = "cpu"
    world_size: int = 2
    size: str = "tiny"
    dtype: Literal["bf16", "fp32"] = "bf16"
    timed: bool = False
    """The cheat shows, or could gain, only while it is timed."""

    @property
    def id(self) -> str:
        """For test names."""
        return self.file.removesuffix(".py")

    def config(self) -> JudgeConfig:
        """How to judge both files."""
        settings: dict[str, Any] = {
            "device": self.device,
            "world_size": self.world_size,
            "size": self.size,
            "dtype": self.dtype,
            "rounds": 4 if self.timed else 0,
            "deadline_s": 20.0,
        }
        return JudgeConfig.model_validate(settings)
