"""What problems draw: fresh, different by rank and draw, and such that the answer needs the peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from problem_cases import (
    CASES,
    PROBLEMS,
    Case,
    Trial,
    compare_ranks,
    draw_inputs,
    expected_of,
    float_tensors,
    has_same_bits,
    inputs_of,
    is_close,
    judgeside,
    leaves,
    oracle,
    right_outputs,
    trials,
)
from wrong_outputs import change_inputs

NUM_DEPENDENCE_DRAWS = 12
SEVERAL = 8
"""So many elements are not equal by accident; a single small integer may be."""

BASE_HBM_BYTES = 64 * 2**20
BASE_FLOPS = 4e9
"""Base sizes above these are left to the machines that have the time."""

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_inputs_repeat_for_the_same_seeds(case: Case) -> None:
    for trial in trials(case):
        for again, before in zip(draw_inputs(trial), inputs_of(trial), strict=True):
            assert has_same_bits(again, before, case.dtype), trial


@each_case
def test_inputs_differ_by_rank(case: Case) -> None:
    for trial in trials(case):
        drawn = [arguments for arguments in inputs_of(trial) if _num_elems(arguments) >= SEVERAL]
        for i, arguments in enumerate(drawn):
            for other in drawn[i + 1 :]:
                assert not has_same_bits(arguments, other, case.dtype), trial


@each_case
def test_inputs_differ_by_draw(case: Case) -> None:
    for trial in trials(case):
        for arguments, other in zip(inputs_of(trial), inputs_of(trial.another()), strict=True):
            if _num_elems(arguments) >= SEVERAL:
                assert not _has_same_tensors(arguments, other, case), trial


@each_case
def test_inputs_are_plain_and_not_constant(case: Case) -> None:
    for trial in trials(case):
        for arguments in inputs_of(trial):
            for tensor in leaves(arguments):
                if not isinstance(tensor, torch.Tensor):
                    continue
                assert tensor.device.type == "cpu" and not tensor.requires_grad, trial
                if tensor.is_floating_point() and tensor.numel() >= SEVERAL:
                    assert tensor.min() < tensor.max(), trial


@each_case
def test_oracle_leaves_inputs_untouched(case: Case) -> None:
    for trial in trials(case):
        drawn = draw_inputs(trial)
        oracle(trial, drawn)
        for after, before in zip(drawn, inputs_of(trial), strict=True):
            assert has_same_bits(after, before, case.dtype), trial


@each_case
def test_exact_trials_have_integer_answers(case: Case) -> None:
    exact_trials = [trial for trial in trials(case) if trial.exact]
    assert bool(exact_trials) == case.problem.exact_trial
    for trial in exact_trials:
        for tensor in float_tensors(expected_of(trial)):
            assert torch.equal(tensor, tensor.round()) and float(tensor.abs().max()) <= 256, trial


@each_case
def test_answers_depend_on_the_peers(case: Case) -> None:
    # A root needs nobody else's data, and an empty block carries none: so not every rank in every draw.
    if case.world_size == 1:
        pytest.skip("there are no peers")
    first = trials(case)[0]
    draws = [replace(first, index=index) for index in range(NUM_DEPENDENCE_DRAWS)]
    needed = {trial.index: _ranks_that_need_peers(trial) for trial in draws}
    assert set().union(*needed.values()) == set(range(case.world_size))
    assert sum(bool(ranks) for ranks in needed.values()) > NUM_DEPENDENCE_DRAWS // 2


@pytest.mark.parametrize("problem_id", PROBLEMS)
def test_base_can_be_drawn_and_answered(problem_id: str) -> None:
    world_size = max(w for w in PROBLEMS[problem_id].world_sizes if w <= 2)
    trial = Trial(Case(problem_id, world_size, "bf16"), "base", index=0)
    cost = judgeside(problem_id).cost(trial.size, world_size, "bf16")
    if cost.hbm_bytes > BASE_HBM_BYTES or cost.flops > BASE_FLOPS:
        pytest.skip(f"base is large: {cost}")
    assert all(found.passed for found in compare_ranks(trial, right_outputs(trial)))


def _ranks_that_need_peers(trial: Trial) -> set[int]:
    everyone = set(range(trial.case.world_size))
    changed = [oracle(trial, change_inputs(trial, _other_values, everyone - {r}))[r] for r in everyone]
    return {r for r in everyone if not is_close(changed[r], expected_of(trial)[r])}


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind: those of the neighbors, floating ones scaled too."""
    moved = tensor.flatten().roll(1).view_as(tensor)
    return moved * -1.25 if tensor.is_floating_point() else moved


def _num_elems(arguments: tuple[Any, ...]) -> int:
    return sum(leaf.numel() for leaf in leaves(arguments) if isinstance(leaf, torch.Tensor))


def _has_same_tensors(arguments: tuple[Any, ...], other: tuple[Any, ...], case: Case) -> bool:
    """Numbers and groups change with the draw anyway: the tensors have to."""
    pairs = [[leaf for leaf in leaves(one) if isinstance(leaf, torch.Tensor)] for one in (arguments, other)]
    return has_same_bits(pairs[0], pairs[1], case.dtype)
