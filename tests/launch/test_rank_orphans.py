"""Nothing that a rank starts outlives it, however the rank, the judge or the process between them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from leftovers import marked_by, nothing_left, rank_folders
from rank_runs import HONEST, calls, layout, loaded

from pkb.launch import processes
from pkb.launch.ranks import Nursery, RankSet
from pkb.records.errors import HarnessError

ROOT = Path(__file__).parents[2]

# Tests that run beside this one start sleepers of their own.
SECONDS = f"{1_000_000 + os.getpid()}"

# Double fork into a session of its own, with a clean environment: nothing but the parent's pid ties it to us.
ESCAPE = f"""
import os, time, torch.distributed as dist

def solution(tensor):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", "{SECONDS}"], dict())
        os._exit(0)
    time.sleep(0.1)
    return tensor.clone()
"""

FORK_50 = """
import os, time

def solution(tensor):
    for _ in range(50):
        if os.fork() == 0:
            time.sleep(1000)
    return tensor.clone()
"""

# Changes its process id all the time.
RUN_AWAY = """
import os, signal

def solution(tensor):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
    return tensor.clone()
"""

LITTER = """
import os

def solution(tensor):
    os.makedirs("a/b/c")
    os.symlink("/", "a/root")
    open("a/b/c/file", "w").close()
    os.chmod("a/b", 0)
    os.chmod("a", 0)
    return tensor.clone()
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    RankSet(started, layout(1)).close()
    yield started
    started.close()


@pytest.mark.parametrize("source", [ESCAPE, FORK_50, RUN_AWAY, LITTER], ids=["escape", "fork", "run", "litter"])
def test_descendants_end_with_their_set(nursery: Nursery, tmp_path: Path, source: str) -> None:
    world_size = 1 if source is LITTER else 2
    with nothing_left():
        with loaded(nursery, tmp_path, source, world_size) as ranks:
            ranks.request(calls(), 30)
            num_escaped = len(sleepers())
    assert num_escaped == (2 if source is ESCAPE else 0)
    assert not sleepers()


def sleepers() -> set[int]:
    """Processes that ESCAPE has started, in this test or left by an earlier one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == f"sleep\0{SECONDS}\0".encode():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def test_other_sets_keep_running_while_a_runaway_is_hunted(nursery: Nursery, tmp_path: Path) -> None:
    with loaded(nursery, tmp_path, HONEST) as kept:
        with loaded(nursery, tmp_path, RUN_AWAY) as wild:
            wild.request(calls(), 30)
        assert len(kept.request(calls(), 30)) == 2


def test_the_process_that_forks_ranks_can_be_killed_by_a_candidate(tmp_path: Path) -> None:
    source = """
    import os, signal, time
    import torch.distributed as dist

    def solution(tensor):
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        dist.barrier()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    """
    others = marked_by(os.getpid())
    with nothing_left():
        nursery = Nursery()
        try:
            with loaded(nursery, tmp_path, source) as ranks, pytest.raises(HarnessError, match="killed by signal 9"):
                ranks.request(calls(), 30)
            assert marked_by(os.getpid()) == others
            with loaded(nursery, tmp_path, HONEST) as ranks:
                assert len(ranks.request(calls(), 30)) == 2
        finally:
            nursery.close()


def test_closing_before_anything_was_started_is_quick() -> None:
    with nothing_left():
        begin = time.monotonic()
        Nursery().close()
        assert time.monotonic() - begin < 1.0


def test_closing_ends_sets_that_nobody_closed(tmp_path: Path) -> None:
    with nothing_left():
        nursery = Nursery()
        ranks = loaded(nursery, tmp_path, ESCAPE)
        ranks.request(calls(), 20)
        assert len(sleepers()) == 2
        nursery.close()
        assert not sleepers()
        ranks.close()


DRIVER = """
import signal
import sys
from pathlib import Path
# Who starts tests in the background, or under nohup, has these ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path[:0] = {paths!r}
from rank_runs import calls, loaded
from pkb.launch.ranks import Nursery, RankSet, Layout

nursery = Nursery()
with loaded(nursery, Path({folder!r}), {source!r}) as ranks:
    with RankSet(nursery, ranks.layout) as spare:
        spare.wait_ready()
        print("running", flush=True)
        ranks.request(calls(), 60)
"""


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a judge in a process of its own that works on a candidate; ended by the test in some way."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        (tmp_path / "temporary").mkdir()
        script = tmp_path / "driver.py"
        paths = [str(ROOT), str(Path(__file__).parent)]
        script.write_text(DRIVER.format(paths=paths, folder=str(tmp_path), source=source))
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_end_of_the_judge_is_the_end_of_everything(
    start_driver: Callable[[str], subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    source = ESCAPE.replace("return tensor.clone()", "time.sleep(1000)")
    driver = start_driver(source)
    wait_until(lambda: len(sleepers()) == 2)
    assert len(marked_by(driver.pid)) == 5
    assert len(rank_folders(tmp_path / "temporary", driver.pid)) == 2
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == -number
    wait_until(lambda: not marked_by(driver.pid) and not sleepers())
    wait_until(lambda: not rank_folders(tmp_path / "temporary", driver.pid))
    if number == signal.SIGINT:
        assert errors.count("Traceback") == 1
        assert "KeyboardInterrupt" in errors
    else:
        assert errors == ""


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@pytest.mark.parametrize("fast", [True, False], ids=["by the kernel's list", "by all processes"])
def test_children_are_found(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(Path, "iterdir", lambda self: iter(()) if "task" not in str(self) else no_such_list())
    child = subprocess.Popen(["sleep", "100"])
    try:
        assert child.pid in processes.children_of(os.getpid())
    finally:
        child.kill()
    wait_until(lambda: state_of(child.pid) == "Z")
    assert child.pid in processes.children_of(os.getpid())
    child.wait()
    assert child.pid not in processes.children_of(os.getpid())


def no_such_list() -> Iterator[Path]:
    raise FileNotFoundError


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_mark_is_inherited_and_told_apart() -> None:
    children = [subprocess.Popen(["sleep", "100"], env={**os.environ, **processes.mark(t)}) for t in ("a-1", "a-12")]
    try:
        wait_until(lambda: processes.marked("a-1") == {children[0].pid})
        wait_until(lambda: processes.marked("a-12") == {children[1].pid})
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert not processes.marked("a-1")
