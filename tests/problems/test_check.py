"""Comparison of results: container, dtype, shape, then values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pkb.problems._check import (
    ELEMENTS,
    Bound,
    Check,
    ExactValues,
    Expected,
    Foreign,
    Unspecified,
    compare,
    exact,
    relative,
)

NAN, INF = float("nan"), float("inf")
LOOSE = relative(bf16=1e-2, fp32=1e-3)


def truth(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def kinds(check: Check, got: Any, want: Any) -> list[str]:
    return [finding.kind for finding in compare(check, got, want, "fp32").findings]


def test_value_within_the_tolerance_passes_with_its_error() -> None:
    found = compare(LOOSE, torch.tensor([3.0, 4.0]), truth(3.0, 4.004), "fp32")
    assert found.passed
    assert found.error == pytest.approx(0.004 / 5.0, rel=1e-2)
    assert found.tolerance == 1e-3


def test_value_above_the_tolerance_is_found_with_its_place() -> None:
    found = compare(LOOSE, torch.tensor([3.0, 5.0]), truth(3.0, 4.0), "fp32")
    (finding,) = found.findings
    assert finding.kind == "values" and finding.output == "result"
    assert finding.bad is not None and finding.bad.tolist() == [False, True]
    assert found.error == pytest.approx(0.2)


def test_each_working_dtype_has_its_tolerance() -> None:
    got, want = torch.tensor([1.005]), truth(1.0)
    assert compare(LOOSE, got.bfloat16(), want, "bf16").passed
    assert not compare(LOOSE, got, want, "fp32").passed


def test_error_is_relative_to_tiny_truths() -> None:
    assert not compare(LOOSE, torch.zeros(4), truth(*[1e-20] * 4), "fp32").passed


def test_truth_of_zeros_demands_zeros() -> None:
    assert compare(LOOSE, torch.zeros(3), truth(0.0, 0.0, 0.0), "fp32").passed
    found = compare(LOOSE, torch.tensor([0.0, 1e-30, 0.0]), truth(0.0, 0.0, 0.0), "fp32")
    assert not found.passed and found.error is None


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nonfinite_value_is_found_where_a_finite_one_is_expected(value: float) -> None:
    found = compare(LOOSE, torch.tensor([1.0, value, 3.0]), truth(1.0, 2.0, 3.0), "fp32")
    (finding,) = found.findings
    assert finding.bad is not None and finding.bad.tolist() == [False, True, False]
    assert found.error is None


def test_expected_nonfinite_values_have_to_be_the_same() -> None:
    want = truth(1.0, NAN, INF, -INF)
    assert compare(LOOSE, torch.tensor([1.0, NAN, INF, -INF]), want, "fp32").passed
    assert not compare(LOOSE, torch.tensor([1.0, NAN, -INF, -INF]), want, "fp32").passed
    assert not compare(LOOSE, torch.tensor([1.0, 0.0, INF, -INF]), want, "fp32").passed


def test_element_bound_finds_what_the_norm_hides() -> None:
    want = torch.ones(100_000, dtype=torch.float64)
    got = want.float()
    got[-1] = 1.2
    assert compare(LOOSE, got, want, "fp32").passed
    bounded = relative(bf16=1e-2, fp32=1e-3, elements=ELEMENTS)
    (finding,) = compare(bounded, got, want, "fp32").findings
    assert finding.bad is not None and finding.bad.nonzero().tolist() == [[99_999]]


def test_element_bound_adds_its_parts() -> None:
    check = relative(bf16=1.0, fp32=1.0, elements=Bound(rms=0.5, rel=0.1, floor=0.25))
    want = truth(1.0, 1.0, 1.0, 1.0)
    assert compare(check, torch.tensor([1.8, 1.0, 1.0, 1.0]), want, "fp32").passed
    assert not compare(check, torch.tensor([1.9, 1.0, 1.0, 1.0]), want, "fp32").passed


def test_element_bound_counts_only_in_its_dtypes() -> None:
    check = relative(bf16=1.0, fp32=1.0, elements=Bound(rel=0.1, dtypes=("bf16",)))
    got, want = torch.tensor([1.5, 1.0]), truth(1.0, 1.0)
    assert compare(check, got, want, "fp32").passed
    assert not compare(check, got.bfloat16(), want, "bf16").passed


def test_rows_find_a_small_row_among_large_ones() -> None:
    want = torch.tensor([[100.0, 100.0], [0.01, 0.01]], dtype=torch.float64)
    got = torch.tensor([[100.0, 100.0], [0.02, 0.01]])
    assert compare(LOOSE, got, want, "fp32").passed
    (finding,) = compare(relative(bf16=1e-2, fp32=1e-3, rows=2e-2), got, want, "fp32").findings
    assert finding.bad is not None and finding.bad.tolist() == [[False, False], [True, False]]


def test_row_of_zeros_has_to_be_exactly_zero() -> None:
    check = relative(bf16=1e-2, fp32=1e-3, rows=2e-2)
    want = torch.tensor([[100.0, 100.0], [0.0, 0.0]], dtype=torch.float64)
    assert compare(check, torch.tensor([[100.0, 100.0], [0.0, -0.0]]), want, "fp32").passed
    assert not compare(check, torch.tensor([[100.0, 100.0], [0.0, 1e-9]]), want, "fp32").passed


def test_exact_compares_bits() -> None:
    want = torch.tensor([0.0, NAN, 2.0])
    assert compare(exact(), want.clone(), want, "fp32").passed
    assert kinds(exact(), torch.tensor([-0.0, NAN, 2.0]), want) == ["values"]
    other_nan = torch.tensor([0, 0x7FC00001, 0x40000000], dtype=torch.int32).view(torch.float32)
    assert kinds(exact(), other_nan, want) == ["values"]


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bool, torch.int16, torch.int32, torch.int64, torch.complex64]
)
def test_exact_compares_every_kind_of_element(dtype: torch.dtype) -> None:
    want = torch.tensor([0.0, 1.0, 0.0]).to(dtype)
    assert compare(exact(), want.clone(), want, "fp32").passed
    assert not compare(exact(), torch.tensor([0.0, 1.0, 1.0]).to(dtype), want, "fp32").passed


def test_exact_sees_the_imaginary_part() -> None:
    want = torch.tensor([1 + 2j])
    assert not compare(exact(), torch.tensor([1 + 3j]), want, "fp32").passed


def test_exact_values_take_zeros_of_either_sign_but_no_nan() -> None:
    assert compare(ExactValues(), torch.tensor([-0.0, 7.0]), truth(0.0, 7.0), "fp32").passed
    assert not compare(ExactValues(), torch.tensor([0.0, 7.5]), truth(0.0, 7.0), "fp32").passed
    assert not compare(ExactValues(), torch.tensor([NAN, 7.0]), truth(NAN, 7.0), "fp32").passed


def test_exact_values_are_those_of_the_truth_before_rounding() -> None:
    assert not compare(ExactValues(), torch.tensor([257.0]).bfloat16(), truth(257.0), "bf16").passed


def test_integers_are_exact_under_a_relative_check() -> None:
    want = torch.tensor([100_000, 200_000])
    assert compare(LOOSE, want.clone(), want, "fp32").passed
    assert kinds(LOOSE, torch.tensor([100_000, 200_001]), want) == ["values"]


def test_relative_sees_the_imaginary_part() -> None:
    want = Expected(torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex128), torch.complex64)
    assert compare(LOOSE, want.value.to(torch.complex64), want, "fp32").passed
    assert kinds(LOOSE, torch.tensor([1 + 2j, 3 - 4j]), want) == ["values"]


def test_wrong_dtype_and_shape_are_named() -> None:
    want = truth(1.0, 2.0)
    (finding,) = compare(LOOSE, torch.tensor([1.0, 2.0]).bfloat16(), want, "fp32").findings
    assert finding.kind == "dtype" and "float32" in finding.detail and "bfloat16" in finding.detail
    (finding,) = compare(LOOSE, torch.tensor([[1.0, 2.0]]), want, "fp32").findings
    assert finding.kind == "shape" and "[2]" in finding.detail and "[1, 2]" in finding.detail


def test_float64_truth_stands_for_the_working_dtype() -> None:
    assert kinds(LOOSE, truth(1.0), truth(1.0)) == ["dtype"]
    assert compare(LOOSE, torch.tensor([1.0]).bfloat16(), truth(1.0), "bf16").passed


def test_expected_names_a_dtype_of_its_own() -> None:
    want = Expected(truth(1.0), torch.float32)
    assert compare(LOOSE, torch.tensor([1.0]), want, "bf16").passed
    assert not compare(LOOSE, torch.tensor([1.0]).bfloat16(), want, "bf16").passed


def test_unspecified_values_are_free_but_not_their_form() -> None:
    want = Unspecified((2,))
    assert compare(exact(), torch.tensor([NAN, 1.0]), want, "fp32").passed
    assert kinds(exact(), torch.tensor([1.0]), want) == ["shape"]
    assert kinds(exact(), torch.tensor([1, 2]), want) == ["dtype"]
    assert kinds(exact(), None, want) == ["container"]
    assert compare(exact(), torch.tensor([1, 2]), Unspecified((2,), torch.int64), "fp32").passed


def test_containers_have_to_be_of_the_same_type_and_length() -> None:
    one, want = torch.tensor([1.0]), truth(1.0)
    assert kinds(LOOSE, (one, one), (want, want)) == []
    assert kinds(LOOSE, [one, one], (want, want)) == ["container"]
    assert kinds(LOOSE, (one,), (want, want)) == ["container"]
    assert kinds(LOOSE, one, (want,)) == ["container"]
    assert kinds(LOOSE, (one,), want) == ["container"]
    assert kinds(LOOSE, {"a": one}, {"b": want}) == ["container"]
    assert kinds(LOOSE, Foreign("a lazy tensor"), want) == ["container"]


def test_findings_name_the_path_of_the_output() -> None:
    good, bad, want = torch.tensor([1.0]), torch.tensor([2.0]), truth(1.0)
    found = compare(LOOSE, (good, {"loss": bad}), (want, {"loss": want}), "fp32")
    assert [finding.output for finding in found.findings] == ["result[1]['loss']"]
    assert found.error == pytest.approx(1.0)


def test_numbers_and_none_are_compared_by_type_and_value() -> None:
    assert kinds(LOOSE, (3, None), (3, None)) == []
    assert kinds(LOOSE, (4, None), (3, None)) == ["values"]
    assert kinds(LOOSE, (3.0, None), (3, None)) == ["container"]
    assert kinds(LOOSE, (3, 0), (3, None)) == ["container"]


def test_rounding_error_is_what_the_working_dtype_costs() -> None:
    want = truth(1.0 + 2.0**-9, 1.0)
    found = compare(LOOSE, want.bfloat16(), want, "bf16")
    assert found.rounding_error == pytest.approx(2.0**-9 / 2**0.5, rel=1e-2)
    assert compare(LOOSE, truth(1.0).float(), truth(1.0), "fp32").rounding_error == 0.0


def test_empty_tensors_pass() -> None:
    assert compare(LOOSE, torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64), "fp32").passed
    assert compare(exact(), torch.empty(0, 3), torch.empty(0, 3), "fp32").passed
