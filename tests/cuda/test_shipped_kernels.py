"""Every shipped solution with a kernel compiles for Hopper without a GPU, and keeps to the form of a kernel file."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import pkb.cuda
import pkb.symm

SOLUTIONS = Path(__file__).parents[2] / "solutions"
FOLDERS = sorted(kernel.parent for kernel in SOLUTIONS.glob("*/*/kernel.cu"))
HEADINGS = ("Does:", "Moves:", "Protocol:", "Splits:", "Assumes:", "Speed:")


def name_of(folder: Path) -> str:
    return folder.relative_to(SOLUTIONS).as_posix()


def load(folder: Path) -> ModuleType:
    """Import a solution the way a rank does: what it compiles, it compiles now."""
    spec = importlib.util.spec_from_file_location(f"shipped_{folder.parent.name}", folder / "solution.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_kernels() -> None:
    assert len(FOLDERS) >= 4


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_compiles_without_spills_or_warnings(folder: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    module = load(folder)
    build = pkb.cuda.builds()[-1]
    assert build.arch == "sm_90a"
    assert build.kernels
    assert {use.name: use.spill_bytes for use in build.kernels if use.spill_bytes} == {}
    assert "warning" not in build.log
    blocks_per_sm = getattr(module, "BLOCKS_PER_SM", 1)
    # All blocks of a grid must be resident at once, since they wait for peers' blocks.
    assert all(use.registers * module.THREADS * blocks_per_sm <= 65536 for use in build.kernels)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_header_comment_has_the_six_headings_in_order(folder: Path) -> None:
    text = (folder / "kernel.cu").read_text()
    comment = text[: text.index("#include")]
    places = [comment.find(f"// {heading}") for heading in HEADINGS]
    assert -1 not in places and places == sorted(places)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_stays_short(folder: Path) -> None:
    assert len((folder / "kernel.cu").read_text().splitlines()) <= 400
    assert len((folder / "solution.py").read_text().splitlines()) <= 120


def test_symmetric_memory_is_what_solutions_expect() -> None:
    assert {"empty", "rendezvous", "Handle"} <= set(pkb.symm.__all__)
    assert {"ptrs", "rank", "world_size", "barrier", "peer"} <= set(dir(pkb.symm.Handle))
