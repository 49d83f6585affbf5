"""The kernels that docs/write-a-kernel.md shows compile as they stand there."""

import re
from pathlib import Path

import pytest

import pkb.cuda

pytest.importorskip("cuda.bindings.nvrtc")

GUIDE = (Path(__file__).parents[2] / "docs" / "write-a-kernel.md").read_text()
KERNELS = re.findall(r"```cuda\n(.*?)```", GUIDE, re.DOTALL)
NAMES = {"first_read": ["first_read<float>"], "exchange": []}


def test_guide_shows_the_kernels_that_are_compiled_here() -> None:
    assert len(KERNELS) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_of_the_guide_compiles(name: str) -> None:
    (source,) = (kernel for kernel in KERNELS if f" {name}(" in kernel)
    pkb.cuda.compile(source, kernels=NAMES[name])
    build = pkb.cuda.builds()[-1]
    assert [use.spill_bytes for use in build.kernels] == [0]
    assert "warning" not in build.log
