"""The generic tests' own tools, on a problem whose arguments and results are of every kind."""

from __future__ import annotations

from pathlib import Path

import problem_cases
import pytest
import torch
from gloo_pool import GlooPool
from problem_cases import Case, compare_ranks, inputs_of, is_refused, is_right, right_outputs, trials
from wrong_outputs import wrong_outputs

from pkb.problems._check import Outcome
from pkb.problems._find import read_problem
from pkb.problems._spec import Problem

REFERENCE = '''"""Everything.

Returns one of everything; writes to `grads`; `group` and `options` say nothing.
"""
import torch
import torch.distributed as dist


def solution(grads: list[torch.Tensor], options: dict[str, list], module: torch.nn.Linear) -> dict:
    count = torch.tensor(grads[0].shape[0], dtype=torch.int64).reshape(1)
    total = grads[1].float()
    dist.all_reduce(count)
    dist.all_reduce(total, group=options["groups"][0])
    for grad in grads:
        grad.mul_(2)
    shape = torch.Size([int(count), 3])
    codes = total.clamp(-400, 400).to(torch.float8_e4m3fn)
    pieces = [total[:n].clone().to(grads[1].dtype) for n in (1, 4)]
    return {
        "count": count, "shape": shape, "number": int(count), "half": 0.5, "none": None, "codes": codes,
        "positive": total > 0, "wave": torch.complex(total, -total), "pieces": pieces, "any": count,
        "new": (total + module.weight.float().sum()).to(grads[1].dtype),
    }
'''
PROBLEM = """
import torch

from pkb.problems._check import Expected, Outcome, Region, accepts, every, exact_values, mostly_equal, relative, step
from pkb.problems._spec import Cost, Group, Problem

PROBLEM = Problem(
    number=902,
    group="test",
    parallelism="any",
    origin="nowhere",
    world_sizes=(1, 2),
    sizes={"tiny": {"n": 40}, "base": {"n": 64}},
    check=relative(bf16=2e-2, fp32=1e-5),
    in_place=("grads",),
)


def inputs(size, draw):
    module = torch.nn.Linear(3, 2, bias=False, device=draw.device, dtype=draw.dtype).requires_grad_(False)
    module.weight.data = draw.shared_normal(2, 3)
    options = {"groups": [Group.whole(draw.world_size), None], "rest": [draw.normal(2)]}
    return [draw.normal(size["n"], 2), draw.normal(size["n"])], options, module


def oracle(inputs, world_size):
    total = torch.stack([grads[1].double() for grads, *_ in inputs]).sum(dim=0)
    single = torch.stack([grads[1].float() for grads, *_ in inputs]).sum(dim=0)
    count = torch.tensor([sum(len(grads[0]) for grads, *_ in inputs)])
    old = torch.zeros_like(total)
    near_zero = total.abs() < 1e-3
    results = []
    for grads, _, module in inputs:
        results.append(Outcome(
            {
                "count": count, "shape": torch.Size([int(count), 3]), "number": int(count), "half": 0.5, "none": None,
                "codes": Expected(single.to(torch.float8_e4m3fn), check=mostly_equal(share=1e-2, codes=1)),
                "positive": Expected(total > 0, skip=near_zero),
                "wave": Expected(torch.complex(total, -total), torch.complex64, relative(bf16=1e-5, fp32=1e-5)),
                "pieces": [
                    Expected(total[:1], regions=[Region("first", slice(0, 1))]),
                    Expected(total[:4], agree=True),
                ],
                "any": Expected(count, device="cpu", check=accepts(lambda got: (got - count).abs() > 5)),
                "new": Expected(total + module.weight.double().sum(), check=step(old, bf16=2e-2, fp32=1e-5)),
            },
            {"grads": [Expected(g.double() * 2, check=every(exact_values())) for g in grads]},
        ))
    return results


def cost(size, world_size, dtype):
    return Cost(link_bytes=8.0 * (world_size > 1), hbm_bytes=8.0 * size["n"], flops=1.0)
"""


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    folder = tmp_path / "everything"
    folder.mkdir()
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "problem.py").write_text(PROBLEM)
    problem = read_problem(folder)
    monkeypatch.setattr(problem_cases, "problem_of", lambda name: problem)
    return problem


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_truth_passes_and_every_wrong_output_is_refused_or_right(everything: Problem, dtype: str) -> None:
    case = Case("everything", 2, "bf16" if dtype == "bf16" else "fp32")
    names = set()
    for trial in trials(case):
        for found in compare_ranks(trial, right_outputs(trial)):
            assert found.passed, found.findings
        for name, outputs in wrong_outputs(trial):
            refused = is_refused(trial, outputs)
            assert refused or is_right(trial, outputs), name
            names |= {name} if refused else set()
    assert {"zeros", "arguments left as they were", "peers' inputs taken for zeros", "one more thing returned"} <= names


def test_pool_returns_every_kind_and_the_written_arguments(everything: Problem, gloo: GlooPool) -> None:
    case = Case("everything", 2, "bf16")
    drawn = [inputs_of(trial) for trial in trials(case)]
    for trial, replies in zip(trials(case), gloo.run(everything.reference_path, drawn, 2), strict=True):
        outcomes = [Outcome(reply.result, {"grads": reply.arguments[0]}) for reply in replies]
        for found in compare_ranks(trial, outcomes):
            assert found.passed, found.findings
        assert torch.equal(replies[0].arguments[0][0], inputs_of(trial)[0][0][0] * 2)
