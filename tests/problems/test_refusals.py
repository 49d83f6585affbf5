"""Every check accepts the truth, rounded, and refuses everything else that can be made without a GPU."""

from __future__ import annotations

from problem_cases import Case, compare_ranks, is_refused, is_right, right_outputs, trials
from wrong_outputs import near_misses, wrong_outputs


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
