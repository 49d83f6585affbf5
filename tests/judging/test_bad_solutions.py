"""Solutions that are broken in every way that we know: each gets a verdict that says why, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from leftovers import marked_by, nothing_left, rank_folders

import pkb
from pkb.judging import judge as judging
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.launch.processes import children_of
from pkb.records.errors import UsageError
from pkb.records.verdict import Cause, Failure, Phase, Status, Verdict

BAD = Path(__file__).parent / "bad"
ROOT = Path(__file__).parents[2]
DEADLINE_S = 2.0
CONFIG = JudgeConfig(device="cpu", size="tiny", rounds=0, trials=1, deadline_s=DEADLINE_S, build_deadline_s=DEADLINE_S)
OUTSIDE = CONFIG.model_copy(update={"isolation": "off"})
"""Without a sandbox, from which candidates cannot tell tests what they saw or reach what starts them."""


@dataclass(frozen=True)
class Case:
    """A bad solution and what its verdict has to say."""

    file: str
    status: Status
    cause: Cause
    words: tuple[str, ...] = ()
    """In the detail."""
    log: tuple[str, ...] = ()
    phase: Phase = Phase.CHECK


def build(file: str, cause: Cause, *words: str, log: tuple[str, ...] = (), phase: Phase = Phase.BUILD) -> Case:
    return Case(file, Status.BUILD_FAILED, cause, words, log, phase)


def crash(file: str, cause: Cause, *words: str, log: tuple[str, ...] = ()) -> Case:
    return Case(file, Status.CRASHED, cause, words, log)


def hang(file: str, *words: str, log: tuple[str, ...] = ()) -> Case:
    return Case(file, Status.HUNG, Cause.DEADLOCK, (f"no answer within {DEADLINE_S:g} s. ", *words), log)


def wrong(file: str, cause: Cause, *words: str) -> Case:
    return Case(file, Status.WRONG, cause, words)


CASES = [
    build("no_solution", Cause.NO_SOLUTION, "no `solution`", phase=Phase.SCREEN),
    build("not_callable", Cause.NO_SOLUTION, "rank 0: `solution` is of type int, not a function"),
    build("arity_static", Cause.ARITY, "line 4: solution takes 2 ", "passes 1.", phase=Phase.SCREEN),
    build("arity_dynamic", Cause.ARITY, "solution(tensor, *, group)", "1 positional", "'group'"),
    build("import_missing", Cause.IMPORT, "ModuleNotFoundError", "a_module_that_nobody_has", log=("line 3",)),
    build(
        "import_raises", Cause.IMPORT, "RuntimeError", "no such device",
        log=("KeyError: 'device'", "The above exception was the direct cause", "about to look up the device"),
    ),
    build("import_exits", Cause.EXIT, "sys.exit(0) while it was imported at line 5 of import_exits.py"),
    build("import_dies", Cause.EXIT, "rank 0 exited with code 0, last seen importing the solution"),
    build("import_segfaults", Cause.SIGNAL, "rank 0 killed by SIGSEGV", "import_segfaults.py:5 (<module>"),
    build(
        "import_hangs", Cause.DEADLOCK, "no answer within 2 s", "Rank 0: importing the solution at ",
        "import_hangs.py:6 (<module>)", log=("waiting for a license server",),
    ),
    crash("exits_in_call", Cause.EXIT, "called sys.exit('enough') in call 0 at line 7 of exits_in_call.py"),
    crash("dies_in_call", Cause.EXIT, "exited with code 0, last seen inside call 0", log=("leaving now",)),
    crash("raises_on_one_rank", Cause.EXCEPTION, "rank 1: ValueError in call 0 at line 8 of ", ": tile of 3 dim"),
    crash(
        "raises_while_others_wait", Cause.EXCEPTION, "rank 1: ValueError in call 0 at line 8 of ",
        ": no room for rank 1; meanwhile rank 0 was inside call 0 at ",
        "raises_while_others_wait.py:9 (solution, in all_reduce)",
    ),
    crash("raises_nonsense", Cause.EXCEPTION, "Broken in call 0 at line 13 of ", "cannot be shown", log=("xxxxx",)),
    crash(
        "segfaults", Cause.SIGNAL, "rank 1 killed by SIGSEGV, last seen inside call 0 at ",
        "segfaults.py:11 (solution, in string_at)", log=("rank 0 is alive", "rank 1 is alive"),
    ),
    crash("kills_itself", Cause.SIGNAL, "rank 1 killed by SIGKILL", "memory runs out"),
    crash("allocates_all", Cause.OUT_OF_MEMORY, "out of memory in call 0 at line 10 of allocates_all.py"),
    crash("allocates_lists", Cause.OUT_OF_MEMORY, "out of memory in call 0 at line 7 of allocates_lists.py"),
    crash("closes_channel", Cause.EXIT, "closed its channel to the judge"),
    crash("destroys_group", Cause.EXCEPTION, "in call 1 at line 8 of ", ": Default process group has not been init"),
    Case("writes_to_channel", Status.REFUSED, Cause.FORBIDDEN, ("wrote to the judge's channel",)),
    Case("patches_torch", Status.REFUSED, Cause.FORBIDDEN, ("line 7: assigns to torch.equal",), phase=Phase.SCREEN),
    hang(
        "deadlocks", "Rank 0: inside call 0 at ", "deadlocks.py:11 (sum_of_all, in all_reduce).",
        "Rank 1: returned from all 9 calls.", log=("rank 1 goes ahead",),
    ),
    hang("spins", "Rank 0: inside call 0 at ", "spins.py:", " (solution).", "Rank 1: inside call 0 at "),
    hang("stuck_in_c", "stuck_in_c.py:23 (solution).", log=("entering C",)),
    hang("stuck_in_lock", "stuck_in_lock.py:23 (solution)."),
    hang("stops_itself", "Rank 0: inside call 0 at ", "all_reduce", "Rank 1: inside call 0 (stopped by a signal)."),
    wrong("returns_list", Cause.CONTAINER, "expected a tensor, got a list of 1"),
    wrong("returns_numpy", Cause.CONTAINER, "expected a tensor, got a numpy.ndarray"),
    wrong("returns_subclass", Cause.CONTAINER, "expected a tensor, got a pkb_candidate.Agreeable"),
    wrong("returns_parameter", Cause.CONTAINER, "torch.nn.parameter.Parameter"),
    wrong("returns_meta", Cause.CONTAINER, "a tensor on meta, while the arguments are on cpu"),
    wrong("returns_sparse", Cause.CONTAINER, "a tensor of layout torch.sparse_coo"),
    wrong("returns_fp32", Cause.DTYPE, "torch.bfloat16", "torch.float32"),
    wrong("returns_shape", Cause.SHAPE),
    wrong("returns_none", Cause.CONTAINER, "None"),
    wrong("returns_generator", Cause.CONTAINER, "a builtins.generator"),
    wrong("returns_giant", Cause.CONTAINER, "[1099511627776]", "larger than any right result"),
    wrong("returns_itself", Cause.CONTAINER, "a list of 2"),
    Case("mutates", Status.MUTATED_INPUT, Cause.MUTATED, ("its input `tensor` (argument 0) in call 0", "copy")),
    Case("mutates_and_wrong", Status.WRONG, Cause.SCALED),
]  # fmt: skip

HARMLESS = ["any_arguments", "rebound", "prints_much", "closes_streams", "takes_signals", "forks_sleepers"]


@pytest.fixture(scope="module")
def session() -> Iterator[Judge]:
    with nothing_left(), Judge(CONFIG) as judge:
        assert judge.judge("allreduce", ROOT / "pkb/problems/allreduce/reference.py").status is Status.CORRECT
        yield judge


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that get little memory, so that none endangers the machine."""
    # The stacks of torch's threads, some for each core, count as well.
    limit_bytes = (600 + 32 * (os.cpu_count() or 1)) * 1024**2
    monkeypatch.setattr(judging, "rank_memory_limit", lambda mode, world_size: limit_bytes)


def failed(verdict: Verdict) -> Failure:
    assert verdict.failure is not None, str(verdict)
    return verdict.failure


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_bad_solution_is_told_why(session: Judge, case: Case) -> None:
    begin = time.monotonic()
    with nothing_left():
        verdict = session.judge("allreduce", BAD / f"{case.file}.py")
    failure = failed(verdict)
    assert (verdict.status, failure.cause, failure.phase) == (case.status, case.cause, case.phase), failure
    for word in case.words:
        assert word in failure.detail
    for word in case.log:
        assert word in failure.log
    assert time.monotonic() - begin < DEADLINE_S + 5
    assert len(failure.detail) < 2000
    told = failure.detail + failure.log
    assert "/pkb/launch/" not in told, "the judge's own frames are of no use"
    assert repr(verdict) and verdict == Verdict.model_validate_json(verdict.model_dump_json())


def test_closing_all_descriptors_is_a_crash(session: Judge) -> None:
    with nothing_left():
        verdict = session.judge("allreduce", BAD / "closes_descriptors.py")
    # A thread of the process group may abort the rank before the rank finds its channel closed.
    assert verdict.status is Status.CRASHED
    assert failed(verdict).cause in (Cause.EXIT, Cause.SIGNAL)


@pytest.mark.parametrize("name", HARMLESS)
def test_bad_manners_alone_are_correct(session: Judge, name: str) -> None:
    with nothing_left():
        verdict = session.judge("allreduce", BAD / f"{name}.py")
    assert verdict.status is Status.CORRECT, verdict.failure
    assert verdict.failure is None


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"def solution(tensor:\n    return tensor\n", "line 1"),
        (b"def solution(tensor):\n    return tensor\nreturn 3\n", "line 3: 'return' outside function"),
        (b"def solution(tensor):\nreturn tensor\n", "line 2"),
        (b"def solution(tensor):\n    return tensor\nname = 'caf\xe9'\n", "utf-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\xff\xfe", ""),
        (b"# -*- coding: nonsense -*-\ndef solution(tensor):\n    return tensor\n", "nonsense"),
        (b"def solution(tensor):\n    return " + b"(" * 5000 + b"tensor" + b")" * 5000, "nest"),
        (b"def solution(tensor):\n    return " + b"-" * 100_000 + b"tensor\n", "nest"),
    ],
    ids=["colon", "return", "indent", "latin", "binary", "coding", "parentheses", "minus"],
)
def test_what_is_no_python_is_a_syntax_failure(session: Judge, tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    with nothing_left():
        verdict = session.judge("allreduce", path)
    failure = failed(verdict)
    assert (verdict.status, failure.cause) == (Status.BUILD_FAILED, Cause.SYNTAX), failure
    assert word in failure.detail


def test_an_empty_file_defines_no_solution(session: Judge, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_bytes(b"")
    verdict = session.judge("allreduce", tmp_path / "empty.py")
    assert failed(verdict).cause is Cause.NO_SOLUTION


def test_warnings_of_a_candidate_s_source_are_not_the_judge_s(session: Judge, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('"\\d" is None\n' + (BAD / "any_arguments.py").read_text())
    assert session.judge("allreduce", path).status is Status.CORRECT


def judged(path: str | Path, problem: str = "allreduce", **settings: Any) -> Verdict:
    return pkb.judge(problem, path, config=CONFIG, **settings)


def test_a_request_that_cannot_be_met_says_what_can(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    good = BAD / "any_arguments.py"
    requests: list[tuple[Path, dict[str, Any], list[str]]] = [
        (tmp_path / "none.py", {}, ["none.py: no such file"]),
        (tmp_path / "folder", {}, ["directory without solution.py"]),
        (tmp_path / "notes.txt", {}, ["expected a Python file (.py)", ".txt"]),
        (good, {"problem": "all_reduce"}, ["no problem 'all_reduce'", "allreduce"]),
        (good, {"world_size": 3}, ["runs on 1, 2, 4, 8 ranks, asked for 3"]),
        (good, {"size": "huge"}, ["has no size 'huge'", "tiny", "base"]),
        (good, {"rank_count": 2}, ["unknown setting 'rank_count'", "world_size"]),
    ]
    with nothing_left():
        for path, settings, words in requests:
            with pytest.raises(UsageError) as caught:
                judged(path, **settings)
            for word in words:
                assert word in str(caught.value)


def test_more_ranks_than_gpus_points_to_the_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with nothing_left(), pytest.raises(UsageError, match=r"4 ranks, 2 GPUs here.*--device shared-gpu"):
        judged(BAD / "any_arguments.py", device="cuda", world_size=4)


def test_a_size_that_does_not_fit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "free_bytes", lambda mode: 3 * 2**30)
    with nothing_left(), pytest.raises(UsageError, match=r"needs about [\d.]+ GiB, 3\.0 GiB are free.*--size"):
        judged(BAD / "any_arguments.py", size="large")


def test_more_starts_the_next_ranks_ahead_and_no_rank_serves_twice(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = tmp_path / "mine.py"
    path.write_text(f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
                    + (BAD / "any_arguments.py").read_text())  # fmt: skip

    def ranks() -> list[int]:
        found = [int(pid) for pid in pids.read_text().split()]
        pids.unlink()
        return sorted(found)

    others = children_of(os.getpid())
    with nothing_left(), Judge(OUTSIDE) as judge:
        (nursery,) = children_of(os.getpid()) - others
        assert judge.judge("allreduce", path, more=True).status is Status.CORRECT
        used = ranks()
        ahead = sorted(children_of(nursery))
        assert len(ahead) == 2 and not set(ahead) & set(used)
        assert judge.judge("allreduce", path, more=True).status is Status.CORRECT
        assert ranks() == ahead
        next_ahead = sorted(children_of(nursery))
        assert not set(next_ahead) & set(ahead)
        assert judge.judge("allreduce", BAD / "no_solution.py").status is Status.BUILD_FAILED
        assert sorted(children_of(nursery)) == next_ahead, "a refused source needs no ranks"
        assert judge.judge("allreduce", path).status is Status.CORRECT
        assert ranks() == next_ahead
        assert not children_of(nursery)


def test_a_session_goes_on_after_a_candidate_killed_what_starts_ranks(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os\n\ndef solution(tensor):\n    os.kill(os.getppid(), 9)\n    return tensor\n")
    with nothing_left(), Judge(OUTSIDE) as judge:
        verdict = judge.judge("allreduce", path)
        assert (verdict.status, failed(verdict).cause) == (Status.INVALID, Cause.HARNESS)
        assert "killed by signal 9" in failed(verdict).detail
        assert judge.judge("allreduce", BAD / "any_arguments.py").status is Status.CORRECT


DRIVER = """
import signal
import sys
# Who starts tests in the background has it ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {root!r})
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge

def listen(phase, step):
    print(phase, step, flush=True)

if __name__ == "__main__":
    with Judge(JudgeConfig.model_validate({config!r}), listener=listen) as judge:
        try:
            judge.judge("allreduce", {path!r}, more=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_judge_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir()
    config = {**CONFIG.model_dump(), "deadline_s": 60.0, "build_deadline_s": 60.0}
    path = tmp_path / "mine.py"
    path.write_text("import time\n\ndef solution(tensor):\n    time.sleep(1000)\n")
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(root=str(ROOT), config=config, path=str(path)))
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("check"):
            assert process.poll() is None
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    assert errors == ""
    if number == signal.SIGINT:
        assert (process.returncode, output) == (0, "interrupted\n")
    deadline = time.monotonic() + 10
    while (marked_by(process.pid) or rank_folders(tmp_path / "temporary", process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not marked_by(process.pid)
    assert not rank_folders(tmp_path / "temporary", process.pid)


def test_ranks_work_in_a_folder_that_goes_with_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    lines = f"import os\nopen({str(tmp_path / 'cwd')!r}, 'w').write(os.getcwd())\nopen('left', 'w').close()\n"
    path.write_text(lines + (BAD / "any_arguments.py").read_text())
    assert judged(path, isolation="off").status is Status.CORRECT
    folder = Path((tmp_path / "cwd").read_text())
    assert folder.parent == Path(tempfile.gettempdir())
    assert not folder.exists()
