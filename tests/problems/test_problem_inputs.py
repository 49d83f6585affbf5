"""What problems draw: fresh, different by rank and draw, and such that the answer needs the peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from problem_cases import (
    Case,
    Trial,
    draw_inputs,
    expected_of,
    has_same_bits,
    has_same_tensors,
    inputs_of,
    is_close,
    is_number,
    oracle,
    oracle_if_valid,
    trials,
    truths,
)
from wrong_outputs import change_inputs

from pkb.problems._check import Outcome
from pkb.problems._tree import tensors

MIN_DEPENDENCE_DRAWS, MAX_DEPENDENCE_DRAWS = 3, 12
SEVERAL = 8
"""So many elements are not equal by accident; a single small integer may be."""


def test_inputs_repeat_for_the_same_seeds(input_case: Case) -> None:
    for trial in trials(input_case):
        for again, before in zip(draw_inputs(trial), inputs_of(trial), strict=True):
            assert has_same_bits(again, before), trial


def test_inputs_differ_by_rank(input_case: Case) -> None:
    for trial in trials(input_case):
        drawn = [arguments for arguments in inputs_of(trial) if _num_elems(arguments) >= SEVERAL]
        for i, arguments in enumerate(drawn):
            for other in drawn[i + 1 :]:
                assert not has_same_bits(arguments, other), trial


def test_inputs_differ_by_draw(input_case: Case) -> None:
    for trial in trials(input_case):
        for arguments, other in zip(inputs_of(trial), inputs_of(trial.another()), strict=True):
            if _num_elems(arguments) >= SEVERAL:
                # Numbers and groups change with the draw anyway: the tensors have to.
                assert not has_same_tensors(arguments, other), trial


def test_inputs_are_plain_and_not_constant(input_case: Case) -> None:
    for trial in trials(input_case):
        for arguments in inputs_of(trial):
            assert isinstance(arguments, tuple), trial
            for tensor in tensors(arguments):
                assert tensor.device.type == "cpu" and not tensor.requires_grad, trial
                if tensor.is_floating_point() and tensor.numel() >= SEVERAL:
                    assert tensor.float().min() < tensor.float().max(), trial


def test_oracle_leaves_inputs_untouched(input_case: Case) -> None:
    for trial in trials(input_case):
        drawn = draw_inputs(trial)
        oracle(trial, drawn)
        for after, before in zip(drawn, inputs_of(trial), strict=True):
            assert has_same_bits(after, before), trial


def test_oracle_answers_for_arguments_that_are_results(input_case: Case) -> None:
    names = input_case.problem.in_place
    for trial in trials(input_case):
        for expected in expected_of(trial):
            assert isinstance(expected, Outcome) == bool(names), trial
            assert not names or set(expected.arguments) == set(names), trial


def test_exact_trials_have_integer_answers(case: Case) -> None:
    exact_trials = [trial for trial in trials(case) if trial.exact]
    assert bool(exact_trials) == case.problem.exact_trial
    for trial in exact_trials:
        for tensor in truths(expected_of(trial)):
            assert torch.equal(tensor, tensor.round()) and float(tensor.abs().max()) <= 256, trial


def test_answers_depend_on_the_peers(peer_case: Case) -> None:
    # A root needs nobody else's data, and an empty block carries none: so not every rank in every draw.
    everyone = set(range(peer_case.world_size))
    first = trials(peer_case)[0]
    needed: list[set[int]] = []
    for index in range(MAX_DEPENDENCE_DRAWS):
        found = _ranks_that_need_peers(replace(first, index=index))
        if found is None:
            pytest.skip("inputs changed on single ranks are no valid ones")
        needed.append(found)
        if set().union(*needed) == everyone and len(needed) >= MIN_DEPENDENCE_DRAWS:
            break
    assert sum(bool(ranks) for ranks in needed) > len(needed) // 2
    # The first stage of a pipeline needs nobody: then others must need it.
    for rank in everyone - set().union(*needed):
        assert _is_needed(first, rank), f"rank {rank} neither needs peers nor is needed"


def _ranks_that_need_peers(trial: Trial) -> set[int] | None:
    """Ranks whose answer changes with the inputs of the others; None if those cannot be changed."""
    everyone = set(range(trial.case.world_size))
    found = set()
    for rank in everyone:
        changed = oracle_if_valid(trial, change_inputs(trial, _other_values, everyone - {rank}))
        if changed is None:
            return None
        if not is_close(changed[rank], expected_of(trial)[rank]):
            found.add(rank)
    return found


def _is_needed(trial: Trial, rank: int) -> bool:
    changed = oracle_if_valid(trial, change_inputs(trial, _other_values, {rank}))
    others = [r for r in range(trial.case.world_size) if r != rank]
    return changed is not None and any(not is_close(changed[r], expected_of(trial)[r]) for r in others)


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind: those of the neighbors, numbers scaled too."""
    moved = tensor.flatten().roll(1).view_as(tensor)
    if not is_number(tensor):
        return moved
    return (moved.to(torch.complex128 if tensor.is_complex() else torch.float64) * -1.25).to(tensor.dtype)


def _num_elems(arguments: tuple[Any, ...]) -> int:
    return sum(tensor.numel() for tensor in tensors(arguments))
