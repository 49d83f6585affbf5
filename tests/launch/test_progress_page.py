"""Where a rank is, read by the judge without asking it."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from pkb.launch.progress import ProgressPage, State


@pytest.fixture
def fd() -> Iterator[int]:
    descriptor = ProgressPage.create()
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("state", list(State))
def test_one_side_writes_what_the_other_reads(fd: int, state: State) -> None:
    rank, judge = ProgressPage(fd), ProgressPage(fd)
    rank.set(state, 41)
    text = judge.text()
    assert text
    assert ("41" in text) == (state in (State.IN_CALL, State.RETURNED, State.WAITING_FOR_DEVICE))
    rank.close()
    judge.close()


def test_a_fresh_page_waits_for_the_judge(fd: int) -> None:
    page = ProgressPage(fd)
    assert page.text() == "waiting for the judge"
    page.close()


def test_nonsense_on_the_page_is_said_to_be_that(fd: int) -> None:
    page = ProgressPage(fd)
    with mmap.mmap(fd, 16) as raw:
        raw[:] = struct.pack("<qq", 2**60, -1)
        assert "overwrote" in page.text()
    page.close()


def test_a_rank_cannot_take_the_page_away(fd: int) -> None:
    page = ProgressPage(fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1 << 20)
    assert page.text() == "waiting for the judge"
    page.close()
