"""Honest results of a trial, without processes, into which a test plants one mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pkb.judging.explain import Call, Explanation, explain
from pkb.problems._check import Expected, expected_dtype
from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._find import get_problem
from pkb.problems._spec import Dtype, Judgeside, Problem, torch_dtype


@dataclass
class Trial:
    """Honest calls of one trial, into which a test plants its mistake."""

    problem: Problem
    code: Judgeside
    dtype: Dtype
    calls: list[Call]

    def x(self, call: int, rank: int, argument: int = 0) -> torch.Tensor:
        """A float64 copy of a tensor argument."""
        tensor: torch.Tensor = self.calls[call].inputs[rank][argument].double()
        return tensor

    def round(self, value: torch.Tensor) -> torch.Tensor:
        """The value in the working dtype."""
        return value.to(torch_dtype(self.dtype))

    def plant(self, call: int, rank: int, result: Any) -> None:
        """Replace what a rank returned."""
        got = list(self.calls[call].got)
        got[rank] = result
        self.calls[call] = replace(self.calls[call], got=got)

    def copy(self, call: int, rank: int) -> torch.Tensor:
        """A copy of what a rank returned, to be changed."""
        tensor: torch.Tensor = self.calls[call].got[rank].clone()
        return tensor

    def explain(self, failing: int, reruns: Sequence[Sequence[Call]] = ()) -> Explanation:
        return explain(self.problem, self.code, self.calls, failing, self.dtype, reruns)


def honest(want: Any, dtype: Dtype) -> Any:
    if isinstance(want, (torch.Tensor, Expected)):
        value = want.value if isinstance(want, Expected) else want
        return value.to(expected_dtype(want, dtype)).clone()
    if isinstance(want, dict):
        return {key: honest(item, dtype) for key, item in want.items()}
    return want


def trial_of(
    problem: Problem,
    code: Judgeside,
    size: str,
    *,
    ranks: int,
    dtype: Dtype,
    exact: bool,
    draws: range,
) -> Trial:
    made = []
    for index in draws:
        inputs = []
        for rank in range(ranks):
            seeds = derive_seeds(b"secret", problem=problem.id, size=size, index=index, rank=rank)
            draw = make_draw(seeds, rank=rank, world_size=ranks, dtype=dtype, index=index, exact=exact, device="cpu")
            inputs.append(code.inputs(problem.sizes[size], draw))
        want = code.oracle(inputs, ranks)
        made.append(Call(size, index, exact, inputs, want, [honest(one, dtype) for one in want]))
    return Trial(problem, code, dtype, made)


def trial(
    name: str,
    ranks: int = 4,
    dtype: Dtype = "bf16",
    size: str = "tiny",
    *,
    exact: bool = False,
    first: int = 0,
    calls: int = 4,
) -> Trial:
    problem = get_problem(name)
    return trial_of(
        problem, problem.load(), size, ranks=ranks, dtype=dtype, exact=exact, draws=range(first, first + calls)
    )


def total(t: Trial, call: int, part: Callable[[int], torch.Tensor]) -> torch.Tensor:
    return torch.stack([part(rank) for rank in range(len(t.calls[call].inputs))]).sum(dim=0)


def poison(tensor: torch.Tensor) -> None:
    """Set every bit, as the judge leaves memory."""
    tensor.copy_(torch.full(tensor.shape, -1, dtype=torch.int16).view(torch.bfloat16))
