"""Compilers other than ours report through exceptions of their own; ranks pass them on as compile faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_runs import loaded

from pkb.launch.ranks import Nursery, RankFailure

OUTPUTS = Path(__file__).parents[1] / "cuda" / "outputs"
TRITON = """
import pathlib

CompilationError = type("CompilationError", (Exception,), {{"__module__": "triton.compiler.errors"}})
raise CompilationError(pathlib.Path({path!r}).read_text())
"""
BUILDER = """
import pathlib

raise RuntimeError("Error building extension 'mine': " + pathlib.Path({path!r}).read_text())
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("source", "file", "told"),
    [
        (TRITON, "triton_add", "kernel line 4: error: NameError('nowhere is not defined')"),
        (BUILDER, "ninja_nvcc", 'template.cu:22: error: identifier "nowhere" is undefined'),
    ],
)
def test_an_error_of_another_compiler_is_a_compile_fault(
    nursery: Nursery, tmp_path: Path, source: str, file: str, told: str
) -> None:
    with pytest.raises(RankFailure) as caught:
        loaded(nursery, tmp_path, source.format(path=str(OUTPUTS / f"{file}.txt")))
    fault = caught.value.fault
    assert fault is not None and fault.kind == "compile"
    assert fault.text.splitlines()[1] == told
