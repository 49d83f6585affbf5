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


def pauses_of(folder: Path, solution: Callable[..., Any], lines: range) -> list[str]:
    """What each call leaves in its trace, `|` where it was paused."""
    pauses = LinePauses(str(folder))
    seen = []
    for line in lines:
        trace: list[str] = []
        pauses.call(solution, (trace,), line=line, pause=lambda trace=trace: trace.append("|"))  # type: ignore[misc]
        seen.append("".join(trace))
    return seen


def test_counting_through_lines_pauses_before_each_first_visit_and_only_once(
    tmp_path: Path, solution: Callable[..., Any]
) -> None:
    seen = pauses_of(tmp_path, solution, range(8))
    # The first call only counts: six lines, each of which is tried before one is tried again.
    assert seen == ["abbbc", "a|bbbc", "a|bbbc", "a|bbbc", "abbb|c", "abbbc|", "|abbbc", "a|bbbc"]


def test_a_call_without_a_pause_only_notes_lines(tmp_path: Path, solution: Callable[..., Any]) -> None:
    pauses = LinePauses(str(tmp_path))
    seen = []
    for paused in (False, False, True):
        trace: list[str] = []
        stop = (lambda trace=trace: trace.append("|")) if paused else None  # type: ignore[misc]
        pauses.call(solution, (trace,), line=0, pause=stop)
        seen.append("".join(trace))
    assert seen == ["abbbc", "abbbc", "|abbbc"]


def test_a_rank_that_pauses_in_every_other_call_tries_every_place(tmp_path: Path, solution: Callable[..., Any]) -> None:
    seen = pauses_of(tmp_path, solution, range(0, 14, 2))
    assert set(seen[1:]) == {"|abbbc", "a|bbbc", "abbb|c", "abbbc|"}
    assert seen[1:].count("a|bbbc") == 3


def test_places_that_some_calls_do_not_visit_take_no_turns_from_others(tmp_path: Path) -> None:
    source = """\
def solution(trace, waits=[0]):
    trace.append("a")
    waits[0] = (waits[0] + 1) % 3
    if not waits[0]:
        trace.append("w")
    trace.append("b")
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "solution.py"), "exec"), namespace)
    seen = pauses_of(tmp_path, namespace["solution"], range(20))
    assert sum(text.startswith("|") for text in seen) >= 3
    assert sum(text.endswith("|b") for text in seen) >= 3


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
