"""The corpus of planted bugs behind `benchmarks/explanations.py`: every edit applies."""

from __future__ import annotations

import pytest

from benchmarks.explanations import Bug, corpus
from pkb.problems._find import get_problem
from pkb.records.verdict import CAUSES_OF, Status

BUGS = corpus()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_bug_applies_to_the_program_of_today(bug: Bug) -> None:
    compile(bug.source(), bug.id, "exec")
    assert set(bug.causes) <= CAUSES_OF[Status.WRONG]
    assert bug.world_sizes and set(bug.world_sizes) <= set(get_problem(bug.problem).world_sizes)


def test_corpus_is_broad_and_halved_by_a_hash() -> None:
    ids = [bug.id for bug in BUGS]
    assert len(ids) == len(set(ids)) >= 66
    assert len({bug.problem for bug in BUGS}) >= 16
    num_held = sum(bug.half == "held" for bug in BUGS)
    assert 0.3 * len(BUGS) < num_held < 0.7 * len(BUGS)


def test_edit_that_does_not_apply_is_refused() -> None:
    bug = BUGS[0].model_copy(update={"edits": (("no such text", ""),)})
    with pytest.raises(ValueError, match="does not contain 'no such text'"):
        bug.source()
