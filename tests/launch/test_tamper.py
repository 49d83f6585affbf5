"""What a candidate replaces of its rank is found, and what imports add is not taken for it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from pkb.launch import calls, clock, tamper


@pytest.fixture
def restored() -> Any:
    kept = calls.Caller.time, clock.spin_until, clock.spin_until.__code__, time.monotonic_ns
    yield
    calls.Caller.time, clock.spin_until, clock.spin_until.__code__, time.monotonic_ns = kept  # type: ignore[method-assign]


def test_nothing_has_changed_at_first() -> None:
    assert tamper.watch()() == ""


def test_a_replaced_method_function_code_or_clock_is_named(restored: None) -> None:
    changed = tamper.watch()
    calls.Caller.time = lambda *_: None  # type: ignore[assignment, method-assign]
    assert changed() == "pkb.launch.calls.Caller.time"
    changed = tamper.watch()
    clock.spin_until.__code__ = (lambda monotonic_ns: None).__code__
    assert changed().endswith(".spin_until")
    changed = tamper.watch()
    vars(time)["monotonic_ns"] = lambda: 0
    assert changed() == "time.monotonic_ns"


def test_new_names_are_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tamper.watch()
    monkeypatch.setattr(calls, "more", SimpleNamespace(), raising=False)
    assert changed() == ""
