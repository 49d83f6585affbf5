"""Pauses at lines of a candidate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkb.launch.pauses import LinePauses

SOURCE = """\
def helper(trace):
    trace.append("b")


def solution(trace):
    trace.append("a")
    for _ in range(3):
        helper(trace)
    trace.append("c")
    return trace
"""


@pytest.fixture
def solution(tmp_path: Path) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, str(tmp_path / "solution.py"), "exec"), namespace)
    found: Callable[..., Any] = namespace["solution"]
    return found


def test_counting_through_lines_pauses_before_each_first_visit_and_only_once(
    tmp_path: Path, solution: Callable[..., Any]
) -> None:
    pauses = LinePauses(str(tmp_path))
    seen = []
    for line in range(8):
        trace: list[str] = []
        pauses.call(solution, (trace,), line=line, pause=lambda trace=trace: trace.append("|"))  # type: ignore[misc]
        seen.append("".join(trace))
    # The first call only counts: six lines, after which counting begins anew.
    assert seen == ["abbbc", "a|bbbc", "a|bbbc", "a|bbbc", "abbb|c", "abbbc|", "|abbbc", "a|bbbc"]


def test_files_elsewhere_are_not_paused(tmp_path: Path, solution: Callable[..., Any]) -> None:
    pauses = LinePauses(str(tmp_path / "other"))
    for _ in range(2):
        trace: list[str] = []
        pauses.call(solution, (trace,), line=0, pause=lambda trace=trace: trace.append("|"))  # type: ignore[misc]
        assert trace == ["a", "b", "b", "b", "c"]


def test_an_exception_leaves_no_trace_function(tmp_path: Path) -> None:
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        LinePauses(str(tmp_path)).call(lambda: 1 / 0, (), line=0, pause=lambda: None)
    assert sys.gettrace() is before
