"""Parts of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pkb.records.attempt import Attempt
from pkb.records.run import Run
from pkb.reporting.scores import Column, fast_p, results_of
from pkb.reporting.splits import class_of, group_of, mechanisms_of, parallelism_words, results_by, ways


def test_problems_by_group_and_by_each_word_of_their_parallelism(
    make_run: Callable[..., Run], make_attempt: Callable[..., Attempt]
) -> None:
    run = make_run(["a", "b", "c"])
    attempts = {"a": [make_attempt(speedup=2.0)], "b": [make_attempt("wrong")], "c": []}
    results = results_of(attempts, Column.STRICT)
    assert {n: list(part) for n, part in results_by(run.problems, results, group_of).items()} == {
        "group1": ["a", "c"],
        "group0": ["b"],
    }
    words = results_by(run.problems, results, parallelism_words)
    assert {n: list(part) for n, part in words.items()} == {"sp": ["a", "c"], "tp": ["a", "c"], "dp": ["b"]}
    assert fast_p(words["tp"], 1.0, 1).value == pytest.approx(1 / 2)


def test_correct_attempts_by_class_and_mechanism(make_attempt: Callable[..., Attempt]) -> None:
    attempts = {
        "a": [
            make_attempt(speedup=2.0, mechanisms=("kernels", "copy engine"), library=False),
            make_attempt(speedup=8.0, mechanisms=("kernels",), solution_class="hybrid"),
        ],
        "b": [make_attempt(speedup=1.0, mechanisms=("library collective",), library=True), make_attempt("wrong")],
        "c": [make_attempt()],
    }
    assert [(w.name, w.num_attempts, w.num_problems) for w in ways(attempts, class_of)] == [
        ("custom", 2, 2),
        ("hybrid", 1, 1),
        ("library", 1, 1),
    ]
    by_mechanism = {way.name: way for way in ways(attempts, mechanisms_of)}
    assert by_mechanism["kernels"].geomean == pytest.approx(4.0)
    assert by_mechanism["copy engine"].geomean == pytest.approx(2.0)
    assert by_mechanism["none seen"].geomean is None
