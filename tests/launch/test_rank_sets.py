"""Sets of rank processes: asked, answered, failed, ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from leftovers import nothing_left
from rank_runs import HONEST, calls, layout, load, loaded, prepare

from pkb.launch import wire
from pkb.launch.plan import CallsAnswer, LoadAnswer, Profile, ProfileAnswer
from pkb.launch.ranks import Nursery, RankFailure, RankSet
from pkb.records.errors import HarnessError


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nothing_left():
        started = Nursery()
        RankSet(started, layout(1)).close()
        yield started
        started.close()


@pytest.fixture(autouse=True)
def _clean(nursery: Nursery) -> Iterator[None]:
    with nothing_left():
        yield


def failure_of(
    nursery: Nursery, folder: Path, source: str, deadline_s: float = 20.0, num_calls: int = 1
) -> RankFailure:
    with loaded(nursery, folder, source) as ranks, pytest.raises(RankFailure) as caught:
        ranks.request(calls(num_calls), deadline_s)
    return caught.value


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_group_comes_up_and_every_rank_answers(nursery: Nursery, tmp_path: Path, world_size: int) -> None:
    with loaded(nursery, tmp_path, HONEST, world_size) as ranks:
        messages = ranks.request(calls(3), 30)
        assert len(messages) == world_size
        sums = [wire.rebuild(CallsAnswer.model_validate(m.header).results[0], m.payload)[0] for m in messages]
        assert all(s.equal(sums[0]) for s in sums)
        assert tuple(sums[0].shape) == (5, 7, 3)
        profiles = ranks.request(Profile(draw=0), 30)
        names = {event.name for m in profiles for event in ProfileAnswer.model_validate(m.header).events}
        assert any("all_reduce" in name or "allreduce" in name for name in names)


def test_one_rank_is_asked_alone(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(HONEST)
    with RankSet(nursery, layout()) as ranks:
        ranks.request([prepare(0), prepare(1)], 30)
        for rank in (1, 0):
            assert LoadAnswer.model_validate(ranks.request_one(rank, load(tmp_path / "x.py"), 30).header).builds == ()
        assert len(ranks.request(calls(), 30)) == 2


def test_a_deadline_names_where_every_rank_is(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import torch.distributed as dist

    def inner():
        dist.barrier()

    def solution(tensor):
        if dist.get_rank() == 0:
            inner()
        return tensor
    """
    begin = time.monotonic()
    failure = failure_of(nursery, tmp_path, source, deadline_s=1.0)
    assert time.monotonic() - begin < 5
    assert (failure.kind, failure.rank, failure.text) == ("deadline", 0, "no answer within 1 s")
    waiting, done = failure.states
    assert waiting.state == "inside call 0"
    assert [f"{tmp_path}/candidate.py:5 inner", f"{tmp_path}/candidate.py:9 solution"] == [
        frame for frame in waiting.stack if "candidate.py" in frame
    ]
    assert "distributed" in waiting.stack[0]
    assert done.state == "returned from all 1 calls"
    assert not any("/pkb/launch/" in frame for state in failure.states for frame in state.stack)


SPIN = "while True: pass"
STUCK_IN_C = "import ctypes; ctypes.CDLL(None).sleep(1000); ctypes.CDLL(None).sleep(1000)"
STUCK_IN_A_LOCK = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.mark.parametrize("how", [SPIN, STUCK_IN_C, STUCK_IN_A_LOCK])
def test_a_stuck_rank_tells_its_line(nursery: Nursery, tmp_path: Path, how: str) -> None:
    failure = failure_of(nursery, tmp_path, f"def solution(tensor):\n    {how}\n", deadline_s=0.5)
    assert failure.kind == "deadline"
    for state in failure.states:
        assert state.state == "inside call 0"
        assert f"{tmp_path}/candidate.py:2 solution" in state.stack


def test_other_threads_are_not_taken_for_the_main_one(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import threading, time

    def elsewhere():
        time.sleep(1000)

    def solution(tensor):
        for _ in range(20):
            threading.Thread(target=elsewhere).start()
        time.sleep(999)
    """
    failure = failure_of(nursery, tmp_path, source, deadline_s=1.0)
    assert failure.states[0].stack == (f"{tmp_path}/candidate.py:10 solution",)


def test_a_rank_that_took_the_signal_at_import_still_tells_its_line(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import signal, time
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def solution(tensor):
        time.sleep(1000)
    """
    failure = failure_of(nursery, tmp_path, source, deadline_s=0.5)
    assert failure.states[1].stack == (f"{tmp_path}/candidate.py:6 solution",)


@pytest.mark.parametrize(
    ("how", "code", "state"),
    [
        ("os._exit(0)", 0, "exited with code 0, last seen inside call 1"),
        ("os._exit(3)", 3, "exited with code 3, last seen inside call 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL, last seen inside call 1"),
        ("ctypes.string_at(0)", -11, "killed by SIGSEGV, last seen inside call 1"),
        ("os.abort()", -6, "killed by SIGABRT, last seen inside call 1"),
    ],
)
def test_a_death_is_named_and_not_what_it_does_to_peers(
    nursery: Nursery, tmp_path: Path, how: str, code: int, state: str
) -> None:
    source = f"""
    import ctypes, os, signal
    import torch.distributed as dist
    count = 0

    def solution(tensor):
        global count
        count += 1
        print("call", count, "of rank", dist.get_rank())
        if count == 2 and dist.get_rank() == 1:
            {how}
        dist.all_reduce(tensor.clone())
        return tensor
    """
    failure = failure_of(nursery, tmp_path, source, num_calls=3)
    assert (failure.kind, failure.rank, failure.exit_code) == ("died", 1, code)
    assert failure.states[1].state == state
    assert (
        failure.output == "[rank 0]\ncall 1 of rank 0\ncall 2 of rank 0\n[rank 1]\ncall 1 of rank 1\ncall 2 of rank 1"
    )
    if code in (-11, -6):
        assert f"{tmp_path}/candidate.py:11 solution" in failure.states[1].stack


def test_a_death_is_seen_although_a_fork_holds_the_channel(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import os, time

    def solution(tensor):
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(5)
    """
    begin = time.monotonic()
    failure = failure_of(nursery, tmp_path, source, deadline_s=20)
    assert (failure.kind, failure.exit_code) == ("died", 5)
    assert time.monotonic() - begin < 5


def test_a_fork_that_comes_back_from_the_call_does_not_answer(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import os

    def solution(tensor):
        os.fork()
        return tensor.clone()
    """
    with loaded(nursery, tmp_path, source) as ranks:
        for _ in range(3):
            assert len(ranks.request(calls(), 20)) == 2


def test_printf_of_c_is_shown_when_a_rank_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    source = """
    import ctypes, os, signal

    def solution(tensor):
        ctypes.CDLL(None).printf(b"from a kernel\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert "[rank 0]\nfrom a kernel" in failure_of(nursery, tmp_path, source).output


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ('b"garbage that is long enough"', "not a message"),
        ('message({"done": "load", "builds": []})', "an answer to load"),
        ('message({"done": "run_calls", "results": [], "mutated": [], "changed_later": []})', "0 results of 1 calls"),
        ('message({"done": "run_calls", "results": [{}], "mutated": [[-1, 0]], "changed_later": []})', "mutated"),
        ('message({"fault": {"kind": "exception"}})', "text"),
        ('message({"fault": 3})', "RankFault"),
        ("message({})", "done"),
        ('message({"done": ["run_calls"]})', "done"),
        ("struct.pack('<4sIQ', b'PKB1', 2, 1 << 40) + b'{}'", "payload"),
        ('packed({"done": "run_calls", "results": [{}], "mutated": [], "changed_later": []})', "without the ticket"),
        ('packed({"ticket": "0", "fault": 3})', "without the ticket"),
    ],
)
def test_a_forged_answer_is_a_protocol_failure(nursery: Nursery, tmp_path: Path, message: str, word: str) -> None:
    source = f"""
    import json, os, socket, stat, struct, sys, time

    def packed(header):
        text = json.dumps(header).encode()
        return struct.pack("<4sIQ", b"PKB1", len(text), 0) + text

    def message(header):
        frame = sys._getframe()
        while not hasattr(frame.f_locals.get("self"), "_ticket"):
            frame = frame.f_back
        return packed({{**header, "ticket": frame.f_locals["self"]._ticket}})

    def solution(tensor):
        for fd in range(3, 100):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode) and socket.socket(fileno=os.dup(fd)).family == socket.AF_UNIX:
                    os.write(fd, {message})
            except OSError:
                pass
        time.sleep(1000)
    """
    failure = failure_of(nursery, tmp_path, source)
    assert failure.kind == "protocol"
    assert word in failure.text
    assert len(failure.text) <= 500


def test_a_rank_that_reads_no_more_does_not_hold_up_the_judge(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pkb.launch.ranks._SEND_DEADLINE_S", 1)
    source = """
    import os, signal, threading
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()

    def solution(tensor):
        return tensor
    """
    with loaded(nursery, tmp_path, source) as ranks:
        time.sleep(0.6)
        begin = time.monotonic()
        with pytest.raises(RankFailure) as caught:
            ranks.request(calls(10_000), 1)
    assert (caught.value.kind, caught.value.rank) == ("deadline", 0)
    assert time.monotonic() - begin < 10


def test_descriptors_do_not_leak_over_many_sets(nursery: Nursery) -> None:
    with nothing_left():
        for _ in range(20):
            RankSet(nursery, layout(2)).close()


def test_a_set_that_is_interrupted_while_it_starts_leaves_nothing(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = nursery.spawn
    interrupted: list[int] = []

    def interrupt(request: dict[str, object], fds: list[int]) -> int:
        pid = spawn(request, fds)
        if not interrupted:
            interrupted.append(pid)
            return pid
        raise KeyboardInterrupt

    monkeypatch.setattr(nursery, "spawn", interrupt)
    with nothing_left(), pytest.raises(KeyboardInterrupt):
        RankSet(nursery, layout(2))
    assert len(interrupted) == 1
    monkeypatch.undo()
    with RankSet(nursery, layout(2)) as ranks:
        ranks.wait_ready()


def test_an_ended_set_says_so(nursery: Nursery) -> None:
    ranks = RankSet(nursery, layout(1))
    ranks.close()
    ranks.close()
    with pytest.raises(HarnessError, match="ended"):
        ranks.request(calls(), 1)


def test_sets_beside_each_other_end_alone(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, HONEST) as kept:
        with loaded(nursery, tmp_path, HONEST) as other:
            other.request(calls(), 20)
        assert len(kept.request(calls(), 20)) == 2


def test_a_group_that_cannot_stand_is_the_harness_s_fault(nursery: Nursery) -> None:
    tiny = replace(layout(1), memory_bytes=1 << 20)
    with pytest.raises(HarnessError, match="could not start"), RankSet(nursery, tiny) as ranks:
        ranks.wait_ready()
