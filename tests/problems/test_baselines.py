"""Every baseline against the oracle, on gloo ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool, Outcome
from problem_cases import (
    CASES,
    Case,
    Trial,
    compare_ranks,
    expected_of,
    has_same_bits,
    inputs_of,
    is_close,
    map_leaves,
    oracle,
    trials,
)
from wrong_outputs import TF32_TOLERANCE

RunBaseline = Callable[[Case], list[list[Outcome]]]

BF16_ROUNDING = 2.0**-9
FACTOR = 16.0
"""Largest tolerance in units of what correct rounding or the baseline costs."""

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_baseline_passes(case: Case, run_baseline: RunBaseline) -> None:
    for trial, outcomes in zip(trials(case), run_baseline(case), strict=True):
        for rank, found in enumerate(compare_ranks(trial, [outcome.result for outcome in outcomes])):
            assert found.passed, f"{trial}, rank {rank}: {found.findings}"


@each_case
def test_baseline_leaves_inputs_untouched(case: Case, run_baseline: RunBaseline) -> None:
    for trial, outcomes in zip(trials(case), run_baseline(case), strict=True):
        for rank, (outcome, before) in enumerate(zip(outcomes, inputs_of(trial), strict=True)):
            assert has_same_bits(outcome.arguments, before, case.dtype), f"{trial}, rank {rank}"


@each_case
def test_tolerance_is_no_larger_than_rounding_explains(case: Case, run_baseline: RunBaseline) -> None:
    # In fp32 the tiny sizes say little of the sums of large ones; there the refusals of bf16 and, where
    # the contract forbids it, of TF32 show that the tolerance is not too large.
    for trial, outcomes in zip(trials(case), run_baseline(case), strict=True):
        found = compare_ranks(trial, [outcome.result for outcome in outcomes])
        tolerances = [one.tolerance for one in found if one.tolerance is not None]
        if not tolerances:
            continue
        if case.dtype == "fp32":
            assert max(tolerances) <= TF32_TOLERANCE, trial
        else:
            errors = [one.error for one in found if one.error is not None]
            assert max(tolerances) <= FACTOR * max(BF16_ROUNDING, *errors), trial


@each_case
def test_sum_in_another_order_passes(case: Case, gloo: GlooPool) -> None:
    # Where the answer does not depend on which rank holds which inputs, exchanged ranks add in another order.
    free = [trial for trial in trials(case) if case.world_size > 1 and _is_same_for_exchanged_ranks(trial)]
    if not free:
        pytest.skip("the answer depends on which rank holds which inputs")
    calls = [inputs_of(trial)[::-1] for trial in free]
    for trial, outcomes in zip(
        free, gloo.run(case.problem.reference_path, calls, case.world_size), strict=True
    ):
        for found in compare_ranks(trial, [outcome.result for outcome in outcomes]):
            assert found.passed, f"{trial}: {found.findings}"


def _is_same_for_exchanged_ranks(trial: Trial) -> bool:
    forms = [map_leaves(arguments, _form) for arguments in inputs_of(trial)]
    if any(form != forms[0] for form in forms):
        return False
    return is_close(oracle(trial, inputs_of(trial)[::-1]), expected_of(trial))


def _form(leaf: Any) -> Any:
    """What has to be equal for two ranks to exchange their inputs: shapes, and whatever is no tensor."""
    return leaf.shape if isinstance(leaf, torch.Tensor) else leaf
