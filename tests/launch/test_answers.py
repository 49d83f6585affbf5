"""An answer counts only if it fits its command: the candidate can write to the channel, too."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pkb.launch.plan import (
    CallPlan,
    Command,
    ListCollectives,
    Load,
    Prepare,
    Profile,
    Redraw,
    RunCalls,
    Setup,
    TakeResult,
    TimeBlock,
    check_answer,
    max_payload_bytes,
)
from pkb.records.verdict import DeviceMode

START_NS = time.monotonic_ns()
SETUP = Setup(rank=0, world_size=1, mode=DeviceMode.CPU, device_index=0, store="/store", num_threads=1)
PREPARE = Prepare(problem="/p", files={}, dtype="bf16", draws=(), max_result_bytes=100)
LOAD = Load(path="/x.py", solution_sha256="0" * 64, num_arguments=1, cache="/cache")
CALLS = RunCalls(calls=(CallPlan(draw=0), CallPlan(draw=1)))
BLOCK = TimeBlock(iterations=3, pick=1, start_ns=START_NS)
REDRAW = Redraw(size="tiny", first_index=0, own_seeds=(1,), shared_seeds=(2,))
PROFILE = Profile(draw=0)
PROFILED = {
    "done": "profile",
    "events": [{"name": "x", "on_device": True, "count": 3}],
    "collectives": {},
    "barriers": 0,
    "libraries": [],
    "symbols": [],
    "shares_memory": False,
}
LIST = ListCollectives(begin_ns=0)


def calls_answer(num_results: int = 2, mutated: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    return {"done": "run_calls", "results": [{}] * num_results, "mutated": mutated, "changed_later": []}


def block_answer(start: int = 1, end: int = 2) -> dict[str, Any]:
    return {"done": "time_block", "time": {"start_ns": START_NS + start, "end_ns": START_NS + end}}


@pytest.mark.parametrize(
    ("command", "header"),
    [
        (SETUP, {"done": "setup"}),
        (PREPARE, {"done": "prepare"}),
        (LOAD, {"done": "load", "builds": []}),
        (CALLS, calls_answer()),
        (CALLS, calls_answer(mutated=((1, 0),))),
        (BLOCK, block_answer()),
        (BLOCK, block_answer(start=0, end=1)),
        (REDRAW, {"done": "redraw"}),
        (TakeResult(), {"done": "take_result", "result": {"kind": "value"}}),
        (PROFILE, PROFILED),
        (LIST, {"done": "list_collectives", "collectives": {"gloo:all_reduce": 3}}),
    ],
)
def test_an_answer_that_fits_is_taken(command: Command, header: dict[str, Any]) -> None:
    check_answer(command, header)


@pytest.mark.parametrize(
    ("command", "header"),
    [
        (SETUP, {}),
        (SETUP, {"done": "prepare"}),
        (SETUP, {"done": "setup", "more": 1}),
        (LOAD, {"done": "load"}),
        (LOAD, calls_answer()),
        (CALLS, calls_answer(num_results=1)),
        (CALLS, calls_answer(num_results=3)),
        (CALLS, calls_answer(mutated=((2, 0),))),
        (CALLS, calls_answer(mutated=((0, -1),))),
        (CALLS, block_answer()),
        (TakeResult(), block_answer()),
        (TakeResult(), {"done": "take_result"}),
        (BLOCK, block_answer(start=-1)),
        (BLOCK, block_answer(start=1, end=1)),
        (BLOCK, block_answer(start=2, end=1)),
        (BLOCK, block_answer(end=10**15)),
        (BLOCK, {"done": "time_block", "time": {"start_ns": START_NS, "end_ns": "soon"}}),
        (PROFILE, {"done": "profile", "events": [{"name": "x"}]}),
    ],
)
def test_an_answer_that_does_not_fit_is_none(command: Command, header: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        check_answer(command, header)


@pytest.mark.parametrize(
    ("command", "num_bytes"),
    [(SETUP, 0), (PREPARE, 0), (LOAD, 0), (CALLS, 200), (REDRAW, 0), (BLOCK, 0), (TakeResult(), 100), (PROFILE, 0)],
)
def test_only_results_carry_bytes(command: Command, num_bytes: int) -> None:
    assert max_payload_bytes(command, max_result_bytes=100) == num_bytes
