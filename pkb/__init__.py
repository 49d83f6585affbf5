"""Benchmark and judge for multi-GPU kernels: the public names, loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pkb.judging.config import JudgeConfig
    from pkb.judging.judge import judge, time_baseline
    from pkb.problems._find import get_problem, list_problems
    from pkb.problems._spec import Problem
    from pkb.records.errors import HarnessError, UsageError
    from pkb.records.jsonl import load
    from pkb.records.solution import Solution
    from pkb.records.verdict import Status, Verdict

_HOMES = {
    "HarnessError": "pkb.records.errors",
    "JudgeConfig": "pkb.judging.config",
    "Problem": "pkb.problems._spec",
    "Solution": "pkb.records.solution",
    "Status": "pkb.records.verdict",
    "UsageError": "pkb.records.errors",
    "Verdict": "pkb.records.verdict",
    "get_problem": "pkb.problems._find",
    "judge": "pkb.judging.judge",
    "list_problems": "pkb.problems._find",
    "load": "pkb.records.jsonl",
    "time_baseline": "pkb.judging.judge",
}

__all__ = [
    "HarnessError",
    "JudgeConfig",
    "Problem",
    "Solution",
    "Status",
    "UsageError",
    "Verdict",
    "get_problem",
    "judge",
    "list_problems",
    "load",
    "time_baseline",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import pkb` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pkb' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
