"""What a rank witnesses of a candidate's use of libraries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_runs import HONEST, calls, loaded

from pkb.launch.plan import ListCollectives, Profile, ProfileAnswer
from pkb.launch.ranks import Nursery, RankSet

NATIVE = HONEST.replace(
    "def solution(tensor):",
    """
import ctypes

libc = ctypes.CDLL(None)

def solution(tensor):
    libc.getpid()
""",
)
SHARED = HONEST.replace(
    "def solution(tensor):",
    """
import mmap

file = open("shared", "w+b")
file.truncate(4096)
page = mmap.mmap(file.fileno(), 4096)

def solution(tensor):
""",
)


def collectives(ranks: RankSet, begin_ns: int) -> list[dict[str, int]]:
    return [m.header["collectives"] for m in ranks.request(ListCollectives(begin_ns=begin_ns), 60)]


def profiled(ranks: RankSet) -> ProfileAnswer:
    return ProfileAnswer.model_validate(ranks.request(Profile(draw=0), 60)[0].header)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def test_collectives_are_counted_from_a_moment_on(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, HONEST) as ranks:
        begin_ns = time.time_ns()
        ranks.request(calls(3), 60)
        assert collectives(ranks, begin_ns) == [{"gloo:all_reduce": 3}] * 2
        assert collectives(ranks, time.time_ns()) == [{}] * 2


def test_a_profile_counts_two_calls_and_nothing_else(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, HONEST) as ranks:
        answer = profiled(ranks)
    assert answer.collectives == {"gloo:all_reduce": 2}
    assert (answer.symbols, answer.shares_memory, answer.barriers) == ((), False, 0)
    assert any(event.name == "c10d::allreduce_" for event in answer.events)


def test_symbols_of_native_libraries_are_heard(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, NATIVE) as ranks:
        assert "getpid" in profiled(ranks).symbols


def test_a_shared_mapping_of_its_own_is_seen(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, SHARED) as ranks:
        assert profiled(ranks).shares_memory
