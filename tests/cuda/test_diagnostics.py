"""Recorded outputs of real compilers, cut to the lines that matter.

Recorded with nvcc and NVRTC 13.0, g++ 12, ninja and Triton 3.5 from files with planted mistakes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pkb.cuda.diagnostics import diagnostics

OUTPUTS = Path(__file__).parent / "outputs"


def heads(file: str) -> list[str]:
    return [diagnostic.head for diagnostic in diagnostics((OUTPUTS / f"{file}.txt").read_text())]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "nvrtc_template",
            [
                'template.cu:21: error: identifier "nowhere" is undefined',
                'template.cu:22: error: expected a ";"',
                'template.cu:9: error: class "Pack<float, 4>" has no member "missing"',
            ],
        ),
        ("nvcc_host", ['host.cu:7: error: no operator "[]" matches these operands']),
        ("nvcc_include", ["inc.cu:3: error: no_such_header.h: No such file or directory"]),
        (
            "nvcc_ptxas",
            [
                "ptxas: PTX line 89: error: Instruction 'tcgen05.alloc' not supported on .target 'sm_90'",
                "ptxas: PTX line 89: error: Feature '.cta_group::1' not supported on .target 'sm_90'",
            ],
        ),
        (
            "nvrtc_ptxas",
            [
                "ptxas: PTX line 88: error: Instruction 'tcgen05.alloc' not supported on .target 'sm_90a'",
                "ptxas: PTX line 88: error: Feature '.cta_group::1' not supported on .target 'sm_90a'",
            ],
        ),
        (
            "ninja_nvcc",
            [
                'template.cu:22: error: identifier "nowhere" is undefined',
                'template.cu:23: error: expected a ";"',
                'template.cu:28: error: no instance of function template "reduce" matches the argument list',
                'host.cu:7: error: no operator "[]" matches these operands',
            ],
        ),
        ("triton_add", ["kernel line 4: error: NameError('nowhere is not defined')"]),
    ],
)
def test_errors_in_order_and_nothing_else(file: str, expected: list[str]) -> None:
    assert heads(file) == expected


def test_line_and_caret_stand_below_and_the_use_of_a_template() -> None:
    *_, member = diagnostics((OUTPUTS / "nvrtc_template.txt").read_text())
    assert member.lines[1:] == (
        "      return start + pack.values[0] + pack.missing;",
        "                                           ^",
        "    in a template that is used at template.cu:15",
    )


def test_an_error_inside_a_system_header_is_told_where_it_is_used() -> None:
    misspelled, order = diagnostics((OUTPUTS / "gcc_template.txt").read_text())
    assert re.match("use.cu:5: error: .wrold_size. was not declared", misspelled.head)
    assert misspelled.below[0] == "    int count(int world_size) { return wrold_size; }"
    assert misspelled.below[1].index("^") == misspelled.below[0].index("wrold_size")
    assert re.fullmatch("use.cu:4: error: no match for .operator<. .operand types are .Link. and .Link..", order.head)
    assert "predefined_ops.h:45" in order.below[0]


def test_triton_shows_the_line_of_the_kernel() -> None:
    (found,) = diagnostics((OUTPUTS / "triton_add.txt").read_text())
    line, caret = found.below
    assert line[caret.index("^") :] == "nowhere)"


def test_a_consequence_is_told_only_alone() -> None:
    assert not diagnostics("ptxas info    : 0 bytes gmem\nnote: something")
    (alone,) = diagnostics("collect2: error: ld returned 1 exit status")
    assert alone.head.startswith("collect2")


def test_long_lines_are_cut() -> None:
    (found,) = diagnostics(f"a.cu(1): error: {'x' * 5000}")
    assert len(found.lines[0]) <= 303
