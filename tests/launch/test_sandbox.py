"""What a candidate can reach from within its sandbox, tried by candidates."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rank_runs import calls, layout, prepare

from pkb.cuda.cache import cache_dir
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.launch.plan import Load, Seal
from pkb.launch.ranks import Nursery, RankFailure, RankSet
from pkb.problems._find import FOLDER, read_problem
from pkb.records.verdict import Status

ROOT = Path(__file__).parents[2]
OBSTACLE = subprocess.run([sys.executable, "-m", "pkb.launch.sandbox"], capture_output=True, text=True).stdout.strip()
pytestmark = pytest.mark.skipif(bool(OBSTACLE), reason=f"no sandbox can be made here: {OBSTACLE}")

HONEST = """
def solution(tensor):
    import torch.distributed as dist
    result = tensor.clone()
    dist.all_reduce(result)
    return result
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery(sandbox=True)
    yield made
    made.close()


@pytest.fixture
def cache() -> Iterator[Path]:
    """A folder for one solution below the cache root, which every box keeps in view."""
    folder = cache_dir("test-sandbox", str(os.getpid()))
    (folder / "own").mkdir(exist_ok=True)
    yield folder / "own"
    shutil.rmtree(folder)


Try = Callable[..., None]


@pytest.fixture
def attempt(nursery: Nursery, cache: Path, tmp_path: Path) -> Try:
    """Imports a candidate on two ranks that runs some statements, and calls it; its assertions fail the test."""

    def run(statements: str, *hidden: Path) -> None:
        source = "import os, signal, socket\nfrom pathlib import Path\n" + textwrap.dedent(statements) + HONEST
        command = Load(
            path=str(tmp_path / "candidate.py"),
            solution_sha256="0" * 64,
            num_arguments=1,
            cache=str(cache),
            seal=Seal(hidden=tuple(map(str, hidden)), files={"candidate.py": source}),
        )
        with RankSet(nursery, layout()) as ranks:
            ranks.request([prepare(rank) for rank in range(2)], 60)
            for rank in range(2):
                ranks.request_one(rank, command, 60)
            ranks.request(calls(2), 60)

    return run


def test_files_of_the_machine_cannot_be_written(attempt: Try) -> None:
    attempt(
        """
        written = []
        for folder in ("/", "/etc", "/usr", "/var", "/home", "/dev", "/proc/sys/kernel", os.path.expanduser("~")):
            try:
                Path(folder, "pkb-was-here").write_text("x")
                written.append(folder)
            except OSError:
                pass
        assert not written, written
        Path("/tmp/pkb-mine").write_text("x")
        Path("/dev/shm/pkb-mine").write_text("x")
        """
    )
    assert not Path("/tmp/pkb-mine").exists()
    assert not Path("/dev/shm/pkb-mine").exists()


def test_tmp_starts_empty_for_each_set_of_ranks(attempt: Try) -> None:
    statements = """
        assert os.environ["RANK"] == "1" or not Path("/tmp/left").exists(), "left by another set"
        Path("/tmp/left").write_text("x")
        """
    attempt(statements)
    attempt(statements)


def test_problems_are_hidden(attempt: Try) -> None:
    statements = f"""
        assert os.listdir({str(FOLDER)!r}) == []
        assert os.listdir({str(ROOT / "tests")!r}) == []
        """
    attempt(statements, FOLDER, ROOT / "tests")


def test_what_is_hidden_cannot_be_uncovered(attempt: Try) -> None:
    statements = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        folder = {str(FOLDER)!r}
        libc.umount2(folder.encode(), 2)
        libc.unshare(0x10000000 | 0x20000)
        libc.umount2(folder.encode(), 2)
        assert os.listdir(folder) == []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                assert os.listdir(f"/proc/{{pid}}/root{{folder}}") == [], pid
            except PermissionError:
                pass
        """
    attempt(statements, FOLDER)


def test_other_processes_can_be_neither_seen_nor_ended(attempt: Try) -> None:
    attempt(
        """
        alive = sorted(int(p) for p in os.listdir("/proc") if p.isdigit())
        # The init process of the box, its two ranks, and none else.
        assert len(alive) == 3 and alive[0] == 1, alive
        os.kill(1, signal.SIGKILL)
        """
    )


def test_no_network_but_a_loopback_of_its_own(attempt: Try) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempt(
            f"""
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
            try:
                socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=1)
                raise AssertionError("reached a server of the machine")
            except ConnectionRefusedError:
                pass
            """
        )


def test_disks_have_no_device_files(attempt: Try) -> None:
    attempt(
        """
        import stat
        disks = [e.path for e in os.scandir("/dev") if stat.S_ISBLK(e.stat(follow_symlinks=False).st_mode)]
        assert not disks, disks
        """
    )


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14), reason="since Linux 6.14 a process namespace has it"
)
def test_the_number_of_processes_is_limited(attempt: Try) -> None:
    attempt('assert int(Path("/proc/sys/kernel/pid_max").read_text()) <= 4096')


def test_the_cache_of_a_solution_outlives_its_ranks_and_hides_the_others(attempt: Try, cache: Path) -> None:
    (cache.parent / "other").mkdir()
    attempt(
        f"""
        assert os.listdir({str(cache.parent)!r}) == ["own"]
        Path({str(cache)!r}, "built").write_text("x")
        """
    )
    assert (cache / "built").read_text() == "x"


def test_a_failed_assertion_of_a_candidate_is_seen(attempt: Try) -> None:
    with pytest.raises(RankFailure, match="seen"):
        attempt("assert False, 'seen'")


def test_verdicts_say_whether_candidates_were_isolated(tmp_path: Path) -> None:
    file = tmp_path / "candidate.py"
    file.write_text(HONEST)
    for isolation, layers in (("required", ("files", "processes", "network", "ipc")), ("off", ())):
        config = JudgeConfig.model_validate({"device": "cpu", "size": "tiny", "rounds": 0, "isolation": isolation})
        with Judge(config) as judge:
            verdict = judge.judge("allreduce", file)
        assert verdict.status is Status.CORRECT, str(verdict)
        assert verdict.isolation == layers


@pytest.mark.parametrize("place", ["/tmp", "home"])
def test_a_problem_of_the_users_own_is_read_wherever_it_lies_and_hidden_from_the_candidate(place: str) -> None:
    with tempfile.TemporaryDirectory(dir=Path.home() if place == "home" else place) as parent:
        folder = Path(parent, "sum_of_all")
        shutil.copytree(FOLDER / "allreduce", folder, ignore=shutil.ignore_patterns("__pycache__"))
        candidate = Path(parent, "candidate.py")
        see = f"import os\nassert not os.path.exists({str(folder / 'problem.py')!r})\n"
        candidate.write_text(see + (folder / "reference.py").read_text())
        with Judge(JudgeConfig(device="cpu", size="tiny", rounds=0, isolation="required")) as judge:
            for solution in (candidate, folder / "reference.py"):
                verdict = judge.judge(read_problem(folder), solution)
                assert verdict.status is Status.CORRECT, str(verdict)
