"""Judging end to end of problems whose calls write to arguments, agree between ranks, or take nested arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pkb.judging import timing
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.problems._find import read_problem
from pkb.problems._spec import Problem
from pkb.records.errors import UsageError
from pkb.records.verdict import Cause, Status, Verdict

COST = """
def cost(size, world_size, dtype):
    return Cost(link_bytes=4.0 * (world_size > 1), hbm_bytes=8.0 * size["n"], flops=4.0 * size["n"])
"""
FACTS = """
from pkb.problems._check import Expected, Outcome, every, exact, relative
from pkb.problems._spec import Cost, Group, Problem
import torch

PROBLEM = Problem(
    number=901,
    group="test",
    parallelism="any",
    origin="nowhere",
    world_sizes=(1, 2),
    sizes={{"tiny": {{"n": 37}}, "tiny_more": {{"n": 50}}, "base": {{"n": 64}}}},
    check=relative(bf16=1e-2, fp32=1e-5),
    {more}
)
"""

# Scale gradients to the norm over all ranks, in place.
CLIP_REFERENCE = '''"""Clip.

Scale the tensors in `grads` in place by 1 over their norm over all ranks of `group`, if that is above `most`.
"""
import torch
import torch.distributed as dist


def solution(grads: list[torch.Tensor | None], most: float, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    held = [grad for grad in grads if grad is not None]
    total = torch.stack([grad.float().square().sum() for grad in held]).sum()
    dist.all_reduce(total, group=group)
    total = total.sqrt()
    if float(total) > most:
        for grad in held:
            grad.mul_(1 / total)
    return total
'''
CLIP_PROBLEM = (
    FACTS.format(more='in_place=("grads",),')
    + """

def inputs(size, draw):
    grads = [draw.normal(size["n"]), None, draw.normal(3, size["n"])]
    return grads, 1e6 if draw.index % 3 == 2 else 1.0, Group.whole(draw.world_size)


def oracle(inputs, world_size):
    held = [g.double() for grads, *_ in inputs for g in grads if g is not None]
    total = torch.stack([g.square().sum() for g in held]).sum().sqrt()
    most, answer = inputs[0][1], Expected(total, torch.float32, relative(bf16=1e-4, fp32=1e-4))

    def after(grad):
        if grad is None or total <= most:
            return None if grad is None else Expected(grad, check=exact())
        return grad.double() / total

    return [Outcome(answer, {"grads": [after(grad) for grad in grads]}) for grads, *_ in inputs]
"""
    + COST
)

# A sum in place, whose arguments may be overwritten, equal bit by bit on all ranks.
SUM_REFERENCE = '''"""Sum.

Sum of `scratch` over all ranks, the same bits on each; `scratch` may be overwritten, `weights` not.
"""
import torch
import torch.distributed as dist


def solution(scratch: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    dist.all_reduce(scratch)
    return scratch
'''
SUM_PROBLEM = (
    FACTS.format(more='may_write=("scratch",), agree=True, dtypes=("fp32",),')
    + """

def inputs(size, draw):
    return draw.normal(size["n"]), {"a": draw.normal(4)}


def oracle(inputs, world_size):
    return [torch.stack([x.double() for x, _ in inputs]).sum(dim=0)] * world_size
"""
    + COST
)

# Arguments that hold tensors in every way that there is.
NEST_REFERENCE = '''"""Nest.

Sum over ranks of `module` applied to the sum of `parts` and of the sparse `matrix`.
"""
import torch
import torch.distributed as dist


def solution(module: torch.nn.Linear, parts: list[torch.Tensor], matrix: torch.Tensor) -> tuple:
    parts[0] = parts[0] + parts[1]
    result = module(parts[0] + matrix.to_dense().to(parts[0].dtype)).detach()
    dist.all_reduce(result)
    return result, result.shape
'''
NEST_PROBLEM = (
    FACTS.format(more="")
    + """

def inputs(size, draw):
    n = size["n"]
    module = torch.nn.Linear(n, 3, bias=False, device=draw.device, dtype=draw.dtype).requires_grad_(False)
    module.weight.data = draw.normal(3, n)
    index = torch.arange(n, device=draw.device)
    where = torch.stack([index % 5, index])
    with torch.sparse.check_sparse_tensor_invariants():
        matrix = torch.sparse_coo_tensor(where, draw.normal(n).float(), (5, n))
    return module, [draw.normal(5, n), draw.normal(5, n)], matrix


def oracle(inputs, world_size):
    terms = [(a.double() + b.double() + m.to_dense().double()) @ layer.weight.double().T for layer, (a, b), m in inputs]
    whole = torch.stack(terms).sum(dim=0)
    return [(whole, whole.shape)] * world_size
"""
    + COST
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeConfig(device="cpu", world_size=2, size="tiny", rounds=0, trials=1)) as session:
        yield session


@pytest.fixture
def clip(tmp_path: Path) -> Problem:
    return make(tmp_path / "clip", CLIP_REFERENCE, CLIP_PROBLEM)


@pytest.fixture
def total(tmp_path: Path) -> Problem:
    return make(tmp_path / "total", SUM_REFERENCE, SUM_PROBLEM)


@pytest.fixture
def nest(tmp_path: Path) -> Problem:
    return make(tmp_path / "nest", NEST_REFERENCE, NEST_PROBLEM)


def make(folder: Path, reference: str, problem: str) -> Problem:
    folder.mkdir()
    (folder / "reference.py").write_text(reference)
    (folder / "problem.py").write_text(problem)
    return read_problem(folder)


def run(judge: Judge, problem: Problem, *changes: tuple[str, str]) -> Verdict:
    """Judge the reference with some of its text replaced."""
    text = problem.reference_path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = problem.folder.parent / "candidate.py"
    path.write_text(text)
    return judge.judge(problem, path, more=True)


def detail(verdict: Verdict) -> str:
    assert verdict.failure is not None
    return verdict.failure.detail


def test_arguments_written_in_place_are_results(judge: Judge, clip: Problem) -> None:
    verdict = run(judge, clip)
    assert verdict.status is Status.CORRECT, str(verdict)


def test_arguments_left_as_they_were_are_wrong(judge: Judge, clip: Problem) -> None:
    verdict = run(judge, clip, ("grad.mul_(1 / total)", "grad * (1 / total)"))
    assert verdict.status is Status.WRONG
    assert "argument grads[0]" in detail(verdict)


def test_list_elements_replaced_do_not_count_as_written(judge: Judge, clip: Problem) -> None:
    change = ("grad.mul_(1 / total)", "grads[:] = [None if g is None else g / total for g in grads]")
    verdict = run(judge, clip, change)
    assert verdict.status is Status.WRONG


def test_argument_written_when_it_must_not_be_is_wrong(judge: Judge, clip: Problem) -> None:
    verdict = run(judge, clip, ("if float(total) > most:", "if True:"))
    assert verdict.status is Status.WRONG
    assert "argument grads" in detail(verdict)


def test_every_timed_call_gets_fresh_arguments(clip: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    # Short blocks: on a busy machine the two clocks drift apart in long ones, which is not what is tested here.
    monkeypatch.setattr(timing, "_BLOCK_US", 2000.0)
    # A second call on clipped gradients finds a norm of 1: timed results are compared, so it would show.
    config = JudgeConfig(device="cpu", world_size=2, size="tiny", rounds=2, trials=1)
    with Judge(config) as session:
        verdict = session.judge(clip, clip.reference_path)
    assert verdict.status is Status.CORRECT, str(verdict)
    assert [timed.size for timed in verdict.timings] == ["tiny", "tiny_more"]
    assert all(timed.candidate_us > 0 for timed in verdict.timings)


def test_scratch_may_be_overwritten(judge_fp32: Judge, total: Problem) -> None:
    verdict = run(judge_fp32, total)
    assert verdict.status is Status.CORRECT, str(verdict)


def test_other_arguments_may_not_within_containers(judge_fp32: Judge, total: Problem) -> None:
    verdict = run(judge_fp32, total, ("    dist.all", "    weights['a'].add_(1)\n    dist.all"))
    assert verdict.status is Status.MUTATED_INPUT
    assert "`weights`" in detail(verdict)


def test_replicas_that_differ_in_bits_are_wrong(judge_fp32: Judge, total: Problem) -> None:
    change = ("return scratch", "return scratch * (1 + 1e-6 * dist.get_rank())")
    verdict = run(judge_fp32, total, change)
    assert verdict.status is Status.WRONG
    assert "rank 1" in detail(verdict) and "differ from rank 0's" in detail(verdict)
    assert verdict.failure is not None and verdict.failure.cause is Cause.RANKS_DIFFER


def test_dtype_that_is_not_judged_is_named(judge: Judge, total: Problem) -> None:
    with pytest.raises(UsageError, match="fp32 only, asked for bf16"):
        run(judge, total)


@pytest.fixture(scope="module")
def judge_fp32() -> Iterator[Judge]:
    config = JudgeConfig(device="cpu", world_size=2, size="tiny", rounds=0, trials=1, dtype="fp32")
    with Judge(config) as session:
        yield session


def test_modules_lists_and_sparse_tensors_are_passed(judge: Judge, nest: Problem) -> None:
    verdict = run(judge, nest)
    assert verdict.status is Status.CORRECT, str(verdict)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("module.weight.data.mul_(1.5)", "module"),
        ("matrix._values().mul_(1.5)", "matrix"),
        ("parts[1].mul_(1.5)", "parts"),
    ],
)
def test_a_change_within_a_nested_argument_is_seen(judge: Judge, nest: Problem, statement: str, name: str) -> None:
    verdict = run(judge, nest, ("    return result", f"    {statement}\n    return result"))
    assert verdict.status is Status.MUTATED_INPUT, str(verdict)
    assert f"`{name}`" in detail(verdict)


def test_missing_contribution_is_explained_through_nested_arguments(judge: Judge, nest: Problem) -> None:
    verdict = run(judge, nest, ("    dist.all_reduce(result)\n", "    dist.all_reduce(result.clone())\n"))
    assert verdict.status is Status.WRONG
    assert verdict.failure is not None and verdict.failure.cause in (Cause.OWN_DATA_ONLY, Cause.MISSING_RANK)
