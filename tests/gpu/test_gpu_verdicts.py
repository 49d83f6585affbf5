"""Verdicts that need a GPU; one is enough, its ranks take turns on it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pkb import symm
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.records.errors import UsageError
from pkb.records.verdict import Cause, DeviceMode, Status, Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRONG = ROOT / "tests" / "judging" / "wrong"


@pytest.fixture(scope="module", params=[2, 4])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    config = JudgeConfig(device="shared-gpu", world_size=request.param, size="tiny", rounds=0, deadline_s=15.0)
    with Judge(config) as session:
        yield session


def failed(verdict: Verdict, status: Status, causes: set[Cause]) -> str:
    """The detail of a verdict that has to have a status and one of some causes."""
    assert verdict.status is status, str(verdict)
    assert verdict.failure is not None
    assert verdict.failure.cause in causes, str(verdict)
    return verdict.failure.detail


@pytest.mark.parametrize("folder", sorted(f.parent for f in ROOT.glob("solutions/*/*/solution.py")), ids=str)
def test_shipped_solution_is_correct(judge: Judge, folder: Path) -> None:
    verdict = judge.judge(folder.parent.name, folder, more=True)
    assert verdict.status is Status.CORRECT, str(verdict)
    assert verdict.library is False


def test_solution_of_the_public_benchmark_runs_unchanged(judge: Judge) -> None:
    verdict = judge.judge("allreduce", HERE / "solutions" / "allreduce_load_inline.py", more=True)
    assert verdict.status is Status.CORRECT, str(verdict)


@pytest.mark.parametrize(
    ("file", "causes"),
    [
        (ROOT / "examples/wrong/allreduce_no_leave_barrier.py", {Cause.OVERWRITTEN, Cause.RACE}),
        (WRONG / "allreduce_no_enter_barrier.py", {Cause.STALE, Cause.UNWRITTEN, Cause.RACE}),
        (HERE / "solutions" / "side_stream.py", {Cause.UNWRITTEN, Cause.STALE, Cause.RACE}),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_race_is_caught(judge: Judge, file: Path, causes: set[Cause]) -> None:
    failed(judge.judge("allreduce", file, more=True), Status.WRONG, causes)


def test_kernel_that_spins_is_a_hang_that_names_its_rank(judge: Judge) -> None:
    verdict = judge.judge("allreduce", HERE / "solutions" / "spins_forever.py", more=True)
    detail = failed(verdict, Status.HUNG, {Cause.DEADLOCK})
    assert f"Rank {judge.config.world_size - 1}" in detail


def test_bad_address_is_a_crash(judge: Judge) -> None:
    verdict = judge.judge("allreduce", HERE / "solutions" / "bad_address.py", more=True)
    detail = failed(verdict, Status.CRASHED, {Cause.EXCEPTION, Cause.SIGNAL})
    assert "illegal memory access" in detail


def test_too_much_memory_is_out_of_memory(judge: Judge) -> None:
    verdict = judge.judge("allreduce", HERE / "solutions" / "too_much_memory.py", more=True)
    failed(verdict, Status.CRASHED, {Cause.OUT_OF_MEMORY})


def test_a_symmetric_buffer_without_room_is_explained() -> None:
    with pytest.raises(UsageError, match=r"no room for a symmetric buffer of \d+ bytes \(cuda:0: \d+ of \d+"):
        symm.empty(1 << 45, dtype=torch.uint8, device="cuda:0")


def test_nothing_is_left_on_the_gpu() -> None:
    def processes() -> int:
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        return len(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())

    before = processes()
    with Judge(JudgeConfig(device="shared-gpu", world_size=2, size="tiny", rounds=0, deadline_s=5.0)) as session:
        session.judge("allreduce", HERE / "solutions" / "spins_forever.py")
    deadline = time.monotonic() + 20.0
    while processes() > max(before, 1) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes() <= max(before, 1)


def test_one_rank_per_gpu_is_timed() -> None:
    world_size = torch.cuda.device_count()
    config = JudgeConfig(device="cuda", world_size=1 if world_size < 2 else 2, size="base", rounds=6)
    with Judge(config) as session:
        verdict = session.judge("allreduce", ROOT / "solutions" / "allreduce" / "cuda")
    assert verdict.status is Status.CORRECT, str(verdict)
    assert verdict.device is DeviceMode.CUDA
    (timing,) = verdict.timings
    assert timing.speedup is not None and timing.parent_us is not None
    assert timing.candidate_us == pytest.approx(timing.parent_us, rel=0.5)
