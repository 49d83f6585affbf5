"""Known mistakes as solution files: each must be refused and its kind named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pkb
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.problems._find import list_problems
from pkb.records.verdict import Cause, Status

WRONG = Path(__file__).parent / "wrong"
ROOT = Path(__file__).parents[2]

# problem, file, the cause that must be named
MISTAKES = [
    ("allreduce", "allreduce_dropped_rank.py", {Cause.MISSING_RANK}),
    ("allreduce", "allreduce_stale.py", {Cause.STALE}),
    ("allreduce", "allreduce_no_enter_barrier.py", {Cause.STALE, Cause.UNWRITTEN, Cause.RACE}),
    ("allreduce", "../../../examples/wrong/allreduce_no_leave_barrier.py", {Cause.OVERWRITTEN, Cause.RACE}),
    ("allreduce", "allreduce_alias.py", {Cause.OVERWRITTEN, Cause.RACE}),
    ("allreduce", "zeros.py", {Cause.ZEROS}),
    ("allreduce", "allreduce_fp8.py", {Cause.PRECISION}),
    ("allreduce", "allreduce_own_only.py", {Cause.OWN_DATA_ONLY}),
    ("allreduce", "allreduce_mean.py", {Cause.SCALED}),
    ("allreduce", "allreduce_tail_unwritten.py", {Cause.UNWRITTEN}),
    ("allreduce", "allreduce_inf.py", {Cause.NONFINITE}),
    ("allreduce", "allreduce_fp32.py", {Cause.DTYPE}),
    ("allreduce", "allreduce_flat.py", {Cause.SHAPE}),
    ("allreduce", "allreduce_tuple.py", {Cause.CONTAINER}),
    ("allgather", "allgather_rotated.py", {Cause.PERMUTED_RANKS}),
    ("reducescatter", "reducescatter_wrong_block.py", {Cause.PERMUTED_RANKS}),
    ("tp_rms_norm", "tp_rms_norm_local.py", {Cause.OWN_DATA_ONLY, Cause.NEAR_MISS}),
    ("tp_rms_norm", "zeros.py", {Cause.ZEROS}),
]


@pytest.fixture(scope="module", params=[2, 4])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    config = JudgeConfig(device="cpu", world_size=request.param, size="tiny", rounds=0)
    with Judge(config) as session:
        yield session


@pytest.mark.parametrize(("problem", "file", "causes"), MISTAKES, ids=[m[1] for m in MISTAKES])
def test_mistake_is_refused_and_named(judge: Judge, problem: str, file: str, causes: set[Cause]) -> None:
    verdict = judge.judge(problem, WRONG / file, more=True)
    assert verdict.status is Status.WRONG, str(verdict)
    assert verdict.failure is not None
    assert verdict.failure.cause in causes, verdict.failure.detail


def test_values_that_are_an_ulp_off_are_not_called_overwritten() -> None:
    config = JudgeConfig(device="cpu", world_size=2, size="tiny", rounds=0, dtype="fp32")
    verdict = pkb.judge("fp8_allgather_params", WRONG / "fp8_allgather_params_reciprocal.py", config=config)
    assert verdict.status is Status.WRONG, str(verdict)
    assert verdict.failure is not None
    assert verdict.failure.cause not in {Cause.OVERWRITTEN, Cause.STALE}, verdict.failure.detail


COMBINATIONS = [
    pytest.param(world_size, dtype, marks=[] if (world_size, dtype) == (2, "bf16") else [pytest.mark.slow])
    for world_size in (1, 2, 4)
    for dtype in ("bf16", "fp32")
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("world_size", "dtype"), COMBINATIONS)
def test_every_reference_is_correct(world_size: int, dtype: str) -> None:
    config = JudgeConfig.model_validate(
        {"device": "cpu", "world_size": world_size, "size": "tiny", "rounds": 0, "dtype": dtype}
    )
    verdicts = []
    with Judge(config) as session:
        for problem in list_problems():
            if world_size in problem.world_sizes and dtype in problem.dtypes:
                verdicts.append(session.judge(problem, problem.reference_path, more=True))
    wrong = [f"{v.problem}: {v}" for v in verdicts if v.status is not Status.CORRECT]
    assert not wrong
    assert all(v.library or world_size == 1 for v in verdicts), [v.problem for v in verdicts if not v.library]


@pytest.mark.parametrize("problem", ["allreduce", "allgather", "tp_rms_norm"])
def test_portable_solution_is_solved(judge: Judge, problem: str) -> None:
    verdict = judge.judge(problem, ROOT / "solutions" / problem / "portable", more=True)
    assert verdict.status is Status.CORRECT, str(verdict)
    assert verdict.solved


def test_a_seed_replays_a_failure() -> None:
    config = JudgeConfig(device="cpu", size="tiny", rounds=0)
    first, other = (pkb.judge("allreduce", WRONG / "allreduce_own_only.py", config=config) for _ in range(2))
    again = pkb.judge("allreduce", WRONG / "allreduce_own_only.py", config=config, seed=first.seed)
    assert (again.seed, again.failure) == (first.seed, first.failure)
    assert other.seed != first.seed and other.failure != first.failure
