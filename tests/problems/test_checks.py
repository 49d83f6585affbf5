"""Kinds of checks, parts of outputs that are judged alone, and agreement between ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pkb.problems._check import (
    Bound,
    Check,
    Comparison,
    ExactFloats,
    Expected,
    Outcome,
    Region,
    accepts,
    blocks,
    compare,
    compare_ranks,
    every,
    exact,
    exact_values,
    mostly_equal,
    relative,
    step,
    within,
)

LOOSE = relative(bf16=1e-1, fp32=1e-1)


def judge(got: Any, want: Any, check: Check = LOOSE) -> Comparison:
    return compare(check, got, want, "fp32")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def bad_places(found: Comparison) -> list[list[int]]:
    (finding,) = found.findings
    assert finding.bad is not None
    places: list[list[int]] = finding.bad.nonzero().tolist()
    return places


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), slice(0, 1)),
        (slice(None), torch.tensor([0])),
        torch.tensor([[True, False, False, False]] * 100),
    ],
    ids=["slices", "index tensor", "mask"],
)
def test_region_is_judged_alone_and_named(index: Any) -> None:
    want, got = ones(100, 4), torch.ones(100, 4)
    got[:, 0] *= 1.15
    assert judge(got, want).passed
    found = judge(got, Expected(want, regions=(Region("first columns", index),)))
    assert bad_places(found) == [[row, 0] for row in range(100)]
    assert found.findings[0].detail.startswith("first columns: relative error 0.15")


def test_region_may_have_a_check_of_its_own() -> None:
    want, got = ones(8), torch.ones(8)
    got[0] = 1.01
    own = Region("first", slice(0, 1), relative(bf16=1e-3, fp32=1e-3))
    assert judge(got, Expected(want, regions=(Region("first", slice(0, 1)),))).passed
    assert bad_places(judge(got, Expected(want, regions=(own,)))) == [[0]]


def test_each_leaf_may_have_its_check_and_dtype() -> None:
    want = (Expected(ones(3), torch.float16), Expected(ones(3), check=exact_values()))
    assert judge((torch.ones(3).half() * 1.05, torch.ones(3)), want).passed
    assert not judge((torch.ones(3).half(), torch.ones(3) * 1.05), want).passed
    assert [f.kind for f in judge((torch.ones(3), torch.ones(3)), want).findings] == ["dtype"]


def test_skipped_rows_may_hold_anything() -> None:
    want = Expected(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64), skip=torch.tensor([True, False]))
    assert judge(torch.tensor([[float("nan"), 9.0], [3.0, 4.0]]), want).passed
    assert bad_places(judge(torch.tensor([[1.0, 2.0], [3.0, 9.0]]), want)) == [[1, 1]]


def test_skipped_rows_do_not_excuse_others_by_their_size() -> None:
    want = Expected(torch.tensor([[1e6], [1.0]], dtype=torch.float64), skip=torch.tensor([True, False]))
    assert not judge(torch.tensor([[1e6], [2.0]]), want).passed


def test_device_of_an_output_may_be_the_host() -> None:
    on_host, anywhere = Expected(ones(2), device="cpu"), ones(2)
    got = torch.ones(2)
    assert compare(LOOSE, got, on_host, "fp32", "cuda:0").passed
    (finding,) = compare(LOOSE, got, anywhere, "fp32", "cuda:0").findings
    assert finding.kind == "container" and "on cuda:0, got one on cpu" in finding.detail
    assert compare(LOOSE, got, anywhere, "fp32", "cpu").passed


def test_step_refuses_an_answer_that_never_updates() -> None:
    old = 100 * ones(50)
    want = old + 0.5
    check = step(old, bf16=3e-2, fp32=1e-2)
    assert judge((old + 0.502).float(), want, check).passed
    assert judge(old.float(), want, relative(bf16=1e-2, fp32=1e-2)).passed
    assert not judge(old.float(), want, check).passed
    assert compare(check, want.bfloat16(), want, "bf16").passed


def test_step_of_a_region_is_that_region_s() -> None:
    old, want = ones(64), ones(64)
    want[:4] += 1e-3
    want[4:] += 1.0
    got = want.float()
    got[:4] = 1.0
    check = step(old, bf16=1e-2, fp32=1e-2)
    assert judge(got, want, check).passed
    assert not judge(got, Expected(want, check=check, regions=(Region("small", slice(0, 4)),))).passed


def test_blocks_extend_over_the_dimensions_named() -> None:
    want, got = ones(2, 50, 3), torch.ones(2, 50, 3)
    want[..., 1] = got[..., 1] = 1e-3
    got[:, :, 1] *= 1.5
    assert judge(got, want).passed
    per_channel = relative(bf16=0.1, fp32=0.1, rows=blocks(fp32=0.2, over=(0, 1)))
    assert {place[2] for place in bad_places(judge(got, want, per_channel))} == {1}
    assert judge(got, want, relative(bf16=0.1, fp32=0.1, rows=blocks(bf16=0.2, over=(0, 1)))).passed


def test_blocks_of_columns_are_told_apart_in_another_shape() -> None:
    want, got = ones(4, 6), torch.ones(4, 6)
    want[:, 2:4] = got[:, 2:4] = 1e-3
    got[:, 2:4] = 0.0
    check = relative(bf16=0.1, fp32=0.1, rows=blocks(bf16=0.2, fp32=0.2, shape=(4, 3, 2), over=(0, 2)))
    assert {place[1] for place in bad_places(judge(got, want, check))} == {2, 3}
    want[:, 2:4] = 0.0
    assert judge(got, want, check).passed
    got[0, 2] = 1e-30
    assert not judge(got, want, check).passed


def test_bounds_on_elements_alone() -> None:
    check = within(Bound(rel=1e-3, floor=1e-3))
    inf = float("inf")
    want = torch.tensor([0.0, 100.0, -inf], dtype=torch.float64)
    found = judge(torch.tensor([5e-4, 100.1, -inf]), want, check)
    assert found.passed and found.tolerance is None
    assert bad_places(judge(torch.tensor([5e-3, 100.0, -inf]), want, check)) == [[0]]
    assert bad_places(judge(torch.tensor([0.0, 100.0, -1e30]), want, check)) == [[2]]


def test_few_codes_may_differ_by_one() -> None:
    want = torch.linspace(-200, 200, 1000).to(torch.float8_e4m3fn)
    check = mostly_equal(share=5e-3, codes=1)
    got = want.clone()
    got.view(torch.uint8)[::300] += 1
    assert judge(got, want, check).passed
    got.view(torch.uint8)[5] += 2
    assert bad_places(judge(got, want, check)) == [[5]]
    got = want.clone()
    got.view(torch.uint8)[::50] += 1
    assert len(bad_places(judge(got, want, check))) == 20


def test_codes_next_to_zero_are_neighbors_and_nan_is_none() -> None:
    check = mostly_equal(share=1.0, codes=1)
    want = torch.tensor([0.0, 448.0, 1.0]).to(torch.float8_e4m3fn)
    smallest = torch.tensor([0x80, 0x7E, 0x37], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert judge(smallest, want, check).passed
    nan = torch.tensor([0x00, 0x7F, 0x38], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert bad_places(judge(nan, want, check)) == [[1]]


def test_a_share_may_differ_by_any_amount() -> None:
    want, got = ones(1000), torch.ones(1000)
    got[7] = 1.5
    check = every(relative(bf16=0.1, fp32=0.1), mostly_equal(share=1e-3))
    found = judge(got, want, check)
    assert found.passed and found.tolerance == 0.1
    got[8] = 1.5
    assert bad_places(judge(got, want, check)) == [[7], [8]]


def test_a_function_may_accept_several_answers() -> None:
    low, high = torch.tensor([1, 3]), torch.tensor([2, 3])
    want = Expected(low, check=accepts(lambda got: (got < low) | (got > high)))
    assert judge(torch.tensor([2, 3]), want).passed
    assert bad_places(judge(torch.tensor([2, 4]), want)) == [[1]]
    with pytest.raises(ValueError, match="regions"):
        judge(low, Expected(low, check=want.check, regions=(Region("first", slice(0, 1)),)))


def test_exact_trials_judge_sums_by_value_whatever_the_leaf_s_check() -> None:
    check = ExactFloats(LOOSE)
    assert not judge(torch.ones(3) * 1.01, Expected(ones(3), check=LOOSE), check).passed
    assert judge(torch.ones(3).half() * 1.01, Expected(ones(3).half(), check=LOOSE), check).passed


def test_state_of_arguments_is_judged_by_name() -> None:
    want = Outcome(ones(1), {"grads": [ones(2), None]})
    good = Outcome(torch.ones(1), {"grads": [torch.ones(2), None]})
    assert judge(good, want).passed
    found = judge(Outcome(torch.ones(1), {"grads": [torch.zeros(2), None]}), want)
    assert [finding.output for finding in found.findings] == ["argument grads[0]"]
    assert [f.kind for f in judge(torch.ones(1), want).findings] == ["container"]


def test_replicas_have_to_agree_in_every_bit() -> None:
    want = [(ones(3), ones(2))] * 3
    got = [(torch.ones(3), torch.ones(2)) for _ in range(3)]
    got[2][1][0] = 1.0000001
    assert all(found.passed for found in compare_ranks(LOOSE, got, want, "fp32"))
    first, second, third = compare_ranks(LOOSE, got, want, "fp32", agree=True)
    assert first.passed and second.passed
    (finding,) = third.findings
    assert finding.kind == "agreement" and finding.output == "result[1]" and "rank 0" in finding.detail


def test_one_output_alone_may_have_to_agree() -> None:
    want = [(Expected(ones(3), agree=True), ones(2))] * 2
    ours, theirs = (torch.ones(3), torch.ones(2)), (torch.ones(3), torch.ones(2) * 1.01)
    assert all(found.passed for found in compare_ranks(LOOSE, [ours, theirs], want, "fp32"))
    theirs[0][1] = 1.01
    assert not compare_ranks(LOOSE, [ours, theirs], want, "fp32")[1].passed


def test_numbers_sizes_and_dicts_of_any_order_are_compared() -> None:
    want = {"shape": torch.Size([2, 3]), "n": 3, "x": None}
    assert judge({"n": 3, "x": None, "shape": torch.Size([2, 3])}, want).passed
    assert not judge({"n": 3, "x": None, "shape": (2, 3)}, want).passed
    assert not judge({"n": 3, "x": None, "shape": torch.Size([2, 4])}, want).passed


def test_exact_marks_whole_complex_numbers() -> None:
    want = torch.tensor([1 + 2j, 3 + 4j])
    assert bad_places(judge(torch.tensor([1 + 2j, 3 - 4j]), want, exact())) == [[1]]
