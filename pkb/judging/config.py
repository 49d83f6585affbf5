"""Everything about judging that a user may set."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field

from pkb.records.base import Record


class JudgeConfig(Record):
    """How a candidate is judged."""

    device: Literal["auto", "cuda", "shared-gpu", "cpu"] = "auto"
    """Where ranks run; `auto` takes a GPU each, else one GPU for all, else the CPU."""
    world_size: int = Field(default=2, ge=1, le=64)
    """Number of ranks."""
    size: str = "base"
    """Size that is timed and, beside the tiny ones, checked; a name also stands for its variants."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Working dtype."""
    trials: int = Field(default=3, ge=1)
    """Random correctness draws; problems with exact trials get one of those in addition."""
    rounds: int = Field(default=10, ge=0)
    """Alternating blocks of baseline and candidate; 0 for no timing."""
    deadline_s: float = Field(default=30.0, gt=0)
    """Seconds that a trial or a block may take."""
    isolation: Literal["auto", "off", "required"] = "auto"
    """Whether ranks run in a sandbox; `auto` where the system allows it, `required` or not at all."""
    seed: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Seed of an earlier verdict, to replay its draws and delays; empty for a fresh secret."""
    build_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds that importing the candidate, and with it compiling, may take."""

    @property
    def sha256(self) -> str:
        """Hash over all fields."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
