"""Every check accepts the truth, rounded, and refuses everything else that can be made without a GPU."""

from __future__ import annotations

import pytest
from problem_cases import (
    Case,
    Trial,
    compare_ranks,
    is_refused,
    is_right,
    judgeside,
    problem_of,
    right_outputs,
    trials,
)
from wrong_outputs import near_misses, wrong_outputs

BASE_HBM_BYTES = 64 * 2**20
BASE_FLOPS = 4e9
"""Base sizes above these take minutes on a CPU, and gigabytes."""


def test_rounded_truth_passes(case: Case) -> None:
    for trial in trials(case):
        for rank, found in enumerate(compare_ranks(trial, right_outputs(trial))):
            assert found.passed, f"{trial}, rank {rank}: {found.findings}"


def test_wrong_outputs_are_refused(case: Case) -> None:
    num_refused = 0
    for trial in trials(case):
        for name, outputs in wrong_outputs(trial):
            if is_refused(trial, outputs):
                num_refused += 1
            else:
                # Some are right by accident: what is zero anyway, the answer of a root that needs nobody.
                assert is_right(trial, outputs), f"{trial}: {name} passes"
    assert num_refused > 0


def test_near_misses_are_refused(case: Case) -> None:
    refused: dict[str, int] = {}
    for trial in trials(case):
        for name, outputs in near_misses(trial):
            is_wrong = is_refused(trial, outputs)
            assert is_wrong or is_right(trial, outputs), f"{trial}: {name} passes"
            refused[name] = refused.get(name, 0) + is_wrong
    never_wrong = [name for name, count in refused.items() if count == 0]
    assert not never_wrong, "near misses that are right in every trial show nothing"


@pytest.mark.slow
def test_base_is_answered_and_wrong_outputs_are_refused(problem_id: str) -> None:
    problem = problem_of(problem_id)
    world_size, dtype = min(w for w in problem.world_sizes if w > 1), problem.dtypes[0]
    trial = Trial(Case(problem_id, world_size, dtype), "base", index=0)
    cost = judgeside(problem_id).cost(trial.size, world_size, dtype)
    if cost.hbm_bytes > BASE_HBM_BYTES or cost.flops > BASE_FLOPS:
        pytest.skip(f"base is large: {cost}")
    assert all(found.passed for found in compare_ranks(trial, right_outputs(trial)))
    passed = [
        name
        for name, outputs in wrong_outputs(trial)
        # One element of a million, off by as much as the others are large, is below many a tolerance on a norm.
        if not name.startswith("last element") and not is_refused(trial, outputs) and not is_right(trial, outputs)
    ]
    assert not passed
