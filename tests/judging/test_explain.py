"""Mistakes in what a result looks like, races, and what is asked of the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import honest, poison, total, trial, trial_of

from pkb.judging.explain import check_for
from pkb.problems._check import Expected, Foreign, compare, exact
from pkb.problems._find import get_problem
from pkb.problems._spec import Dtype, Judgeside
from pkb.records.errors import HarnessError
from pkb.records.verdict import Cause

# Structure


@pytest.mark.parametrize(
    ("result", "cause", "words"),
    [
        (None, Cause.CONTAINER, "expected a tensor, got None"),
        (Foreign("a tensor on cuda:1"), Cause.CONTAINER, "got a tensor on cuda:1"),
        (torch.zeros(5, 7, 3), Cause.DTYPE, "expected dtype torch.bfloat16, got torch.float32"),
        (torch.zeros(7, 5, 3, dtype=torch.bfloat16), Cause.SHAPE, "expected shape [5, 7, 3], got [7, 5, 3]"),
    ],
)
def test_structure_of_a_result_is_named_before_its_values(result: Any, cause: Cause, words: str) -> None:
    t = trial("allreduce")
    t.plant(1, 0, torch.zeros(5, 7, 3, dtype=torch.bfloat16))
    t.plant(1, 2, result)
    found = t.explain(1)
    assert found.cause is cause
    assert words in found.detail and "result on rank 2, call 1 (of calls 0 to 3" in found.detail
    assert found.mismatch is None


def test_number_in_place_of_another_is_located() -> None:
    problem = replace(get_problem("allreduce"), check=exact(), id="count")
    code = Judgeside(
        inputs=lambda size, draw: (draw.normal(3),),
        oracle=lambda inputs, world_size: [(len(inputs), 7)] * world_size,
        cost=problem.load().cost,
        near_misses=lambda expected, inputs: iter(()),
    )
    t = trial_of(problem, code, "tiny", ranks=2, dtype="fp32", exact=False, draws=range(1))
    t.plant(0, 1, (2, 11))
    found = t.explain(0)
    assert found.mismatch is not None
    assert (found.mismatch.rank, found.mismatch.output, found.mismatch.index) == (1, "result[1]", ())
    assert (found.mismatch.got, found.mismatch.expected) == ("11", "7")


# Blank memory


def test_tail_of_poison_is_unwritten() -> None:
    t = trial("allreduce")
    result = t.copy(2, 1)
    poison(result.view(-1)[100:])
    t.plant(2, 1, result)
    found = t.explain(2)
    assert found.cause is Cause.UNWRITTEN
    assert "the last 5 of 105 elements, from [4, 5, 1] on are not written" in found.detail.lower()
    assert found.mismatch is not None
    assert (found.mismatch.rank, found.mismatch.index) == (1, (4, 5, 1))
    assert (found.mismatch.got, found.mismatch.wrong_elems, found.mismatch.total_elems) == ("nan", 5, 105)


def test_whole_poison_is_unwritten() -> None:
    t = trial("allreduce")
    result = t.copy(0, 3)
    poison(result)
    t.plant(0, 3, result)
    found = t.explain(0)
    assert found.cause is Cause.UNWRITTEN and "all 105 elements are not written" in found.detail.lower()


def test_zero_tail_and_zero_block_are_unwritten() -> None:
    t = trial("allreduce", size="tiny_2d")
    result = t.copy(0, 0)
    result.view(-1)[-9:] = 0
    t.plant(0, 0, result)
    found = t.explain(0)
    assert found.cause is Cause.UNWRITTEN and "the last 9 of 4257 elements" in found.detail.lower()
    assert "left zero" in found.detail
    t.plant(0, 0, t.round(t.calls[0].want[0]))
    result = t.copy(0, 1)
    result[:, 128:] = 0
    t.plant(0, 1, result)
    found = t.explain(0)
    assert found.cause is Cause.UNWRITTEN and "columns 128 to 128 of 129" in found.detail


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_tail_of_garbage_is_unwritten(dtype: Dtype) -> None:
    t = trial("allreduce", dtype=dtype)
    result = t.copy(1, 0)
    result.view(-1)[96:] = torch.linspace(-40, 40, 9)
    t.plant(1, 0, result)
    found = t.explain(1)
    assert found.cause is Cause.UNWRITTEN
    assert "the last 9 of 105 elements" in found.detail.lower() and "the rest is right" in found.detail


def test_nan_and_inf_here_and_there_are_nonfinite() -> None:
    t = trial("allreduce")
    result = t.copy(1, 2)
    result.view(-1)[torch.tensor([3, 40, 77])] = float("nan")
    result.view(-1)[50] = float("inf")
    t.plant(1, 2, result)
    found = t.explain(1)
    assert found.cause is Cause.NONFINITE
    assert "3 NaN and 1 infinite" in found.detail
    assert found.mismatch is not None and found.mismatch.index == (0, 1, 0)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "gemm_reducescatter", "tp_rms_norm"])
def test_zero_output(name: str) -> None:
    t = trial(name)
    for rank in range(4):
        t.plant(0, rank, torch.zeros_like(t.calls[0].got[rank]))
    found = t.explain(0)
    assert found.cause is Cause.ZEROS and "ranks 0, 1, 2, 3 of 4" in found.detail


# Values


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (4.0, "times W, W = 4 the world size"),
        (0.25, "times 1/W, W = 4"),
        (-1.0, "times -1"),
        (2.0, "times 2"),
        (1.37, "times 1.37"),
    ],
)
def test_scaled(factor: float, words: str) -> None:
    t = trial("gemm_reducescatter")
    for rank in range(4):
        t.plant(0, rank, t.round(t.calls[0].want[rank] * factor))
    found = t.explain(0)
    assert found.cause is Cause.SCALED and words in found.detail


@pytest.mark.parametrize(
    ("name", "first", "near_miss"),
    [
        ("tp_rms_norm", 0, "weight read backwards"),
        ("moe_all2all_primitive", 1, "offsets from the receiver's own list"),
        ("reducescatter", 0, "every W-th row instead of a block"),
    ],
)
def test_near_miss_of_the_problem(name: str, first: int, near_miss: str) -> None:
    t = trial(name, first=first)
    misses = dict(t.code.near_misses(t.calls[0].want, t.calls[0].inputs))
    for rank in range(4):
        t.plant(0, rank, honest(misses[near_miss][rank], "bf16"))
    found = t.explain(0)
    assert found.cause is Cause.NEAR_MISS and near_miss in found.detail


def test_scaled_move_by_a_simple_ratio() -> None:
    t = trial("allgather", 2)
    for rank in range(2):
        t.plant(0, rank, t.round(t.calls[0].want[rank].double() * 2 / 3))
    found = t.explain(0)
    assert found.cause is Cause.SCALED and "expected one times 2/3" in found.detail


def test_near_miss_that_another_cause_describes_is_mentioned() -> None:
    t = trial("tp_rms_norm")
    misses = dict(t.code.near_misses(t.calls[0].want, t.calls[0].inputs))
    for rank in range(4):
        t.plant(0, rank, t.round(misses["sum divided by the local width"][rank]))
    found = t.explain(0)
    assert found.cause is Cause.SCALED and "1/2 = 1/sqrt(W), W = 4 the world size" in found.detail
    assert "That is a known mistake: sum divided by the local width." in found.detail


def test_factors_in_fp8_are_a_matter_of_precision() -> None:
    t = trial("gemm_reducescatter")

    def product(r: int) -> torch.Tensor:
        A, B = (t.x(0, r, i).to(torch.float8_e4m3fn).double() for i in (0, 1))
        return A @ B

    for rank in range(4):
        t.plant(0, rank, t.round(total(t, 0, product).chunk(4)[rank]))
    found = t.explain(0)
    assert found.cause is Cause.PRECISION and "fp8 e4m3 (3 mantissa bits)" in found.detail
    assert "unbiased" in found.detail


@pytest.mark.parametrize(
    ("dtype", "low", "words"),
    [
        ("bf16", torch.float8_e5m2, "at most 2 mantissa bits, as if rounded to fp8 e5m2"),
        ("bf16", torch.float8_e4m3fn, "at most 3 mantissa bits, as if rounded to fp8 e4m3"),
        ("fp32", torch.bfloat16, "at most 7 mantissa bits, as if rounded to bf16"),
    ],
)
def test_results_on_a_coarser_grid(dtype: Dtype, low: torch.dtype, words: str) -> None:
    t = trial("allreduce", dtype=dtype, size="tiny_2d")
    for rank in range(4):
        t.plant(0, rank, t.round(t.calls[0].want[rank].to(low).double()))
    found = t.explain(0)
    assert found.cause is Cause.PRECISION and words in found.detail


def test_truncation_is_biased() -> None:
    t = trial("allreduce", dtype="fp32", size="tiny_2d")
    for rank in range(4):
        exact_sum = t.calls[0].want[rank].float()
        t.plant(0, rank, (exact_sum.view(torch.int32) & ~0xFFFF).view(torch.float32))
    found = t.explain(0)
    assert found.cause is Cause.PRECISION and "biased toward zero" in found.detail


def test_result_that_resembles_nothing_is_unknown_and_located() -> None:
    t = trial("allreduce")
    generator = torch.Generator().manual_seed(1)
    result = t.copy(1, 2)
    result[1, 2:6, 1:] += torch.randn(4, 2, generator=generator) * 50
    result[3, 0, 0] = 99
    t.plant(1, 2, result)
    found = t.explain(1)
    assert found.cause is Cause.UNKNOWN
    assert "rank 2 of 4, call 1 (of calls 0 to 3, size tiny); first at [1, 2, 1]" in found.detail
    assert "; 9 of 105 elements within rows 9 to 21 of 35" in found.detail
    assert found.mismatch is not None and found.mismatch.expected in found.detail


def test_each_output_of_several_is_looked_at() -> None:
    problem = get_problem("allreduce")

    def oracle(inputs: list[tuple[Any, ...]], world_size: int) -> list[Any]:
        total = torch.stack([x.double() for x, _ in inputs]).sum(dim=0)
        counts = torch.stack([n for _, n in inputs])
        return [{"sum": Expected(total, torch.float32), "counts": counts} for _ in inputs]

    code = Judgeside(
        inputs=lambda size, draw: (draw.normal(6, 9), draw.integers(0, 1000, 5)),
        oracle=oracle,
        cost=problem.load().cost,
        near_misses=lambda expected, inputs: iter(()),
    )
    t = trial_of(problem, code, "tiny", ranks=4, dtype="bf16", exact=False, draws=range(3))
    right = honest(t.calls[1].want[2]["sum"], "bf16")
    t.plant(1, 2, {"sum": right, "counts": t.calls[0].got[2]["counts"]})
    found = t.explain(1)
    assert found.cause is Cause.STALE and "result['counts'] on rank 2 of 4" in found.detail
    without = torch.stack([t.x(2, r) for r in (0, 1, 2)]).sum(dim=0).float()
    t.plant(2, 1, {"sum": without, "counts": t.calls[2].got[1]["counts"]})
    found = t.explain(2)
    assert found.cause is Cause.MISSING_RANK and "data of rank 3 are missing" in found.detail
    assert found.mismatch is not None and found.mismatch.output == "result['sum']"


def test_complex_elements_count_once() -> None:
    problem = get_problem("allgather")

    def oracle(inputs: list[tuple[Any, ...]], world_size: int) -> list[Any]:
        return [torch.stack([x for (x,) in inputs])] * world_size

    code = Judgeside(
        inputs=lambda size, draw: (torch.complex(draw.normal(5, 3), draw.normal(5, 3)),),
        oracle=oracle,
        cost=problem.load().cost,
        near_misses=lambda expected, inputs: iter(()),
    )
    t = trial_of(problem, code, "tiny", ranks=2, dtype="fp32", exact=False, draws=range(2))
    t.plant(0, 0, t.calls[0].got[0].flip(0))
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS
    assert found.mismatch is not None and found.mismatch.total_elems == found.mismatch.wrong_elems == 30
    assert found.mismatch.expected.endswith("j")


def test_oracle_whose_shapes_follow_its_inputs_is_no_obstacle() -> None:
    t = trial("allreduce")
    oracle = t.code.oracle

    def of_those_with_data(inputs: list[tuple[Any, ...]], world_size: int) -> list[Any]:
        num_rows = 1 + sum(bool(tensor.any()) for (tensor,) in inputs)
        return [one[:num_rows] for one in oracle(inputs, world_size)]

    t.code = replace(t.code, oracle=of_those_with_data)
    t.plant(0, 0, torch.linspace(-9, 9, 105, dtype=torch.bfloat16).view(5, 7, 3))
    assert t.explain(0).cause is Cause.UNKNOWN


def test_one_rank_alone() -> None:
    t = trial("allreduce", 1)
    t.plant(2, 0, t.copy(1, 0))
    assert t.explain(2).cause is Cause.STALE
    t.plant(0, 0, torch.linspace(-9, 9, 105, dtype=torch.bfloat16).view(5, 7, 3))
    assert t.explain(0).cause is Cause.UNKNOWN


# Races


def test_reruns_that_differ_make_a_race() -> None:
    t = trial("allreduce", 2)
    steady = list(t.calls)
    t.plant(1, 0, t.round(t.x(1, 0)))
    found = t.explain(1, reruns=[t.calls, steady, steady])
    assert found.cause is Cause.RACE
    assert "2 of 3 reruns on identical inputs gave another result" in found.detail
    assert "data of rank 1 are missing" in found.detail


def test_reruns_that_differ_by_rounding_are_no_race() -> None:
    t = trial("allreduce", dtype="fp32")
    t.plant(1, 0, t.round(total(t, 1, lambda r: t.x(1, r) * (r != 1))))
    nearly = [replace(call, got=[one * (1 + 1e-6) for one in call.got]) for call in t.calls]
    assert t.explain(1, reruns=[nearly]).cause is Cause.MISSING_RANK


def test_elements_that_no_run_has_right_are_unwritten_and_no_race() -> None:
    t = trial("allreduce", 2)
    runs = []
    for seed in range(3):
        garbage = torch.randn(9, generator=torch.Generator().manual_seed(seed)) * 50
        result = t.round(t.calls[1].want[0])
        result.view(-1)[96:] = garbage
        t.plant(1, 0, result)
        runs.append(list(t.calls))
    found = t.explain(1, reruns=runs[:2])
    assert found.cause is Cause.UNWRITTEN and "race" not in found.detail.lower()


def test_overwritten_data_stay_the_cause_of_a_race() -> None:
    t = trial("allreduce", 2)
    steady = list(t.calls)
    t.plant(1, 0, t.round(t.x(1, 0) + t.x(2, 1)))
    found = t.explain(1, reruns=[steady])
    assert found.cause is Cause.OVERWRITTEN and "1 of 1 reruns" in found.detail


# Little evidence


def test_single_elements_are_explained_with_the_help_of_other_calls() -> None:
    t = trial("allreduce", 4, size="tiny_one", exact=True, calls=6)
    for call in range(6):
        for rank in range(4):
            t.plant(call, rank, t.round(torch.stack([t.x(call, r) for r in range(3)]).sum(dim=0)))
    check = check_for(t.problem, True)
    wrong = [c for c in range(6) if not compare(check, t.calls[c].got[0], t.calls[c].want[0], "bf16").passed]
    assert len(wrong) > 2
    found = t.explain(wrong[0])
    assert found.cause is Cause.MISSING_RANK and "data of rank 3 are missing" in found.detail


@pytest.mark.parametrize("seed", range(6))
def test_a_single_wrong_element_is_not_explained_by_chance(seed: int) -> None:
    t = trial("allreduce", 8, exact=True)
    result = t.copy(1, 3)
    place = 10 + 13 * seed
    result.view(-1)[place] += 1 + seed
    t.plant(1, 3, result)
    found = t.explain(1)
    assert found.cause is Cause.UNKNOWN
    assert found.mismatch is not None and found.mismatch.index == (place // 21, place // 3 % 7, place % 3)


# The judge's side


def test_exact_trials_ask_for_every_value() -> None:
    problem = get_problem("allreduce")
    want = torch.tensor([200.0, 3.0], dtype=torch.float64)
    got = torch.tensor([201.0, 3.0], dtype=torch.bfloat16)
    assert compare(check_for(problem, False), got, want, "bf16").passed
    assert not compare(check_for(problem, True), got, want, "bf16").passed
    codes, other = torch.tensor([1, 2]), torch.tensor([1, 3])
    check = check_for(replace(problem, check=exact()), True)
    assert compare(check, codes, codes, "bf16").passed and not compare(check, other, codes, "bf16").passed


def test_right_results_are_not_explained() -> None:
    t = trial("allreduce")
    with pytest.raises(HarnessError, match="results are right"):
        t.explain(0)


def test_oracle_that_refuses_changed_inputs_leaves_the_other_hypotheses() -> None:
    t = trial("allreduce")
    oracle = t.code.oracle

    def picky(inputs: list[tuple[Any, ...]], world_size: int) -> list[Any]:
        if any(not bool(tensor.any()) for (tensor,) in inputs):
            raise ValueError("a tensor is zero")
        return oracle(inputs, world_size)

    t.code = replace(t.code, oracle=picky)
    t.plant(2, 0, t.round(total(t, 2, lambda r: t.x(1 if r == 1 else 2, r))))
    assert t.explain(2).cause is Cause.STALE


def test_nan_of_all_bits_here_and_there_are_nonfinite() -> None:
    t = trial("allreduce")
    result = t.copy(1, 2)
    scattered = torch.zeros(105, dtype=torch.bool)
    scattered[torch.tensor([3, 40, 77])] = True
    poisoned = torch.full((105,), -1, dtype=torch.int16).view(torch.bfloat16)
    t.plant(1, 2, torch.where(scattered.view(result.shape), poisoned.view(result.shape), result))
    assert t.explain(1).cause is Cause.NONFINITE
