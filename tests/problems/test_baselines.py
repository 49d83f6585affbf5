"""Every baseline against the oracle, on gloo ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool, Reply
from problem_cases import (
    Case,
    Trial,
    compare_ranks,
    expected_of,
    has_same_bits,
    inputs_of,
    is_close,
    leaves,
    oracle,
    trials,
)
from wrong_outputs import TF32_TOLERANCE

from pkb.problems._check import Comparison, Outcome
from pkb.problems._tree import tensors

RunBaseline = Callable[[Case], list[list[Reply]]]

BF16_ROUNDING = 2.0**-9
FACTOR = 16.0
"""Largest tolerance in units of what correct rounding or the baseline costs."""


def test_baseline_passes(case: Case, run_baseline: RunBaseline) -> None:
    for trial, replies in zip(trials(case), run_baseline(case), strict=True):
        for rank, found in enumerate(_compare(trial, replies)):
            assert found.passed, f"{trial}, rank {rank}: {found.findings}"


def test_baseline_leaves_inputs_untouched(case: Case, run_baseline: RunBaseline) -> None:
    problem = case.problem
    written = set(problem.positions((*problem.in_place, *problem.may_write)).values())
    for trial, replies in zip(trials(case), run_baseline(case), strict=True):
        for rank, (reply, before) in enumerate(zip(replies, inputs_of(trial), strict=True)):
            for i, (now, then) in enumerate(zip(reply.arguments, before, strict=True)):
                assert i in written or has_same_bits(now, then), f"{trial}, rank {rank}, argument {i}"


def test_tolerance_is_no_larger_than_rounding_explains(case: Case, run_baseline: RunBaseline) -> None:
    # In fp32 the tiny sizes say little of the sums of large ones; there the refusals of bf16 and, where
    # the contract forbids it, of TF32 show that the tolerance is not too large.
    for trial, replies in zip(trials(case), run_baseline(case), strict=True):
        found = _compare(trial, replies)
        tolerances = [one.tolerance for one in found if one.tolerance is not None]
        if not tolerances:
            continue
        if case.dtype == "fp32":
            assert max(tolerances) <= TF32_TOLERANCE, trial
        else:
            errors = [one.error for one in found if one.error is not None]
            assert max(tolerances) <= FACTOR * max(BF16_ROUNDING, *errors), trial


def test_sum_in_another_order_passes(peer_case: Case, gloo: GlooPool) -> None:
    # Where the answer does not depend on which rank holds which inputs, exchanged ranks add in another order.
    free = [trial for trial in trials(peer_case) if _is_same_for_exchanged_ranks(trial)]
    if not free:
        pytest.skip("the answer depends on which rank holds which inputs")
    calls = [inputs_of(trial)[::-1] for trial in free]
    replies_of = gloo.run(peer_case.problem.reference_path, calls, peer_case.world_size)
    for trial, replies in zip(free, replies_of, strict=True):
        for found in _compare(trial, replies):
            assert found.passed, f"{trial}: {found.findings}"


def _compare(trial: Trial, replies: list[Reply]) -> list[Comparison]:
    """What the judge finds in what the ranks sent back."""
    in_place = trial.case.problem.positions(trial.case.problem.in_place)
    if not in_place:
        return compare_ranks(trial, [reply.result for reply in replies])
    outcomes = [Outcome(r.result, {name: r.arguments[i] for name, i in in_place.items()}) for r in replies]
    return compare_ranks(trial, outcomes)


def _is_same_for_exchanged_ranks(trial: Trial) -> bool:
    forms = [[_form(leaf) for leaf in leaves(arguments)] for arguments in inputs_of(trial)]
    if any(form != forms[0] for form in forms):
        return False
    return is_close(oracle(trial, inputs_of(trial)[::-1]), expected_of(trial))


def _form(leaf: Any) -> Any:
    """What has to be equal for two ranks to exchange their inputs: shapes, and whatever is no tensor."""
    if isinstance(leaf, (torch.Tensor, torch.nn.Module)):
        return [tensor.shape for tensor in tensors(leaf)]
    return leaf
