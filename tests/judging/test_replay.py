"""The reference in one process, and mistakes planted in one of its collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from planted import trial

from pkb.judging.explain import compare_call
from pkb.judging.mistakes import mistakes_at
from pkb.judging.replay import Alteration, Site, replay, trace
from pkb.problems._find import list_problems
from pkb.problems._spec import Problem
from pkb.records.verdict import Cause


@pytest.mark.parametrize("problem", list_problems(), ids=lambda problem: problem.id)
def test_every_reference_can_be_replayed(problem: Problem) -> None:
    t = trial(problem.id, 4, problem.dtypes[0], calls=1)
    found = trace(t.problem, t.calls[0].inputs)
    assert found is not None
    results, sites = found
    assert all(sites), "a reference without a collective"
    call = replace(t.calls[0], got=results)
    assert all(comparison.passed for comparison in compare_call(t.problem, call, t.dtype))


def test_inputs_stay_as_they_were() -> None:
    t = trial("clip_grad_norm_no_ep", 2, calls=1)
    before = [[g.clone() for g in arguments[0] if g is not None] for arguments in t.calls[0].inputs]
    trace(t.problem, t.calls[0].inputs)
    after = [[g for g in arguments[0] if g is not None] for arguments in t.calls[0].inputs]
    assert all(torch.equal(a, b) for one, two in zip(before, after, strict=True) for a, b in zip(one, two, strict=True))


def test_altered_reduction() -> None:
    t = trial("allreduce", 2, calls=1)
    site = Site(0, "all_reduce", "SUM", 2)
    found = replay(t.problem, t.calls[0].inputs, Alteration(site, "max", op="MAX"))
    assert found is not None
    assert torch.equal(found[0].double(), torch.maximum(t.x(0, 0), t.x(0, 1)))


def test_alteration_that_breaks_the_program_has_no_results() -> None:
    t = trial("allgather", 2, calls=1)
    site = Site(0, "all_gather_into_tensor", "", 2)
    assert replay(t.problem, t.calls[0].inputs, Alteration(site, "too few", lambda parts, _: parts[:1])) is None


def test_every_mistake_in_a_gather_of_blocks_has_a_result_of_its_own() -> None:
    t = trial("gemm_allgather", 4, calls=1)
    found = trace(t.problem, t.calls[0].inputs)
    assert found is not None
    answers = [
        (says, replay(t.problem, t.calls[0].inputs, altered)) for _, says, altered in mistakes_at(found[1][0][0])
    ]
    known = {says: answer[0] for says, answer in answers if answer is not None}
    joined = [says for says in known if "joined along dimension 0, where dimension 1 is right" in says]
    assert len(joined) == 1
    blocks = torch.cat([t.x(0, r, 0) @ t.x(0, r, 1) for r in range(4)]).view(known[joined[0]].shape)
    torch.testing.assert_close(known[joined[0]].double(), blocks, rtol=0.01, atol=0.05)


@pytest.mark.parametrize(
    ("name", "says", "cause", "words"),
    [
        (
            "allreduce",
            "the maximum instead",
            Cause.REDUCTION_OP,
            "the all_reduce of the reference it takes the maximum",
        ),
        ("tp_rms_norm", "the maximum instead", Cause.REDUCTION_OP, "it takes the maximum instead of the sum"),
        ("allgather_gemm", "joined along dimension 0", Cause.SHARDING_AXIS, "a transpose is missing"),
        ("alltoall", "elements to be sent", Cause.SHARDING_AXIS, "elements to be sent are dealt out one by one"),
        ("zero2_optimizer_shard_grad", "part of rank 3", Cause.MISSING_RANK, "part of rank 3 of the group is missing"),
    ],
)
def test_mistake_in_a_collective_is_named(name: str, says: str, cause: Cause, words: str) -> None:
    t = trial(name)
    found = trace(t.problem, t.calls[0].inputs)
    assert found is not None
    for site in found[1][0]:
        for _, clause, altered in mistakes_at(site):
            results = replay(t.problem, t.calls[0].inputs, altered) if says in clause else None
            if results is None:
                continue
            call = replace(t.calls[0], got=results)
            if not all(comparison.passed for comparison in compare_call(t.problem, call, t.dtype)):
                t.calls[0] = call
                explained = t.explain(0)
                assert explained.cause is cause and words in explained.detail
                return
    pytest.fail("no mistake of that kind can be made")
