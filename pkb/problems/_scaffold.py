"""The two files of a new problem, with what is to be written where."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from pkb.records.errors import UsageError

_REFERENCE = '''"""TITLE: what all ranks compute together, in one line that ends with a full stop.

CONTRACT: 3 to 40 lines. Each rank holds `tensor`, of which shape and dtype? Every argument is named in backticks.
What does a rank return, in which dtype? May sizes differ by rank?
Which roundings and orders count, what accumulates in float32? What may be written to?
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("reference.py: write the program that a good PyTorch engineer would write")
'''

_PROBLEM = '''"""Judge's side of {name}."""

from collections.abc import Iterator
from typing import Any

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size

PROBLEM = Problem(
    number={number},
    group="GROUP",
    parallelism="PARALLELISM",
    origin="ORIGIN",
    world_sizes=(1, 2, 4, 8),
    sizes={{
        "tiny": {{"n": 7}},
        "base": {{"n": 4096}},
        "large": {{"n": 2**26}},
    }},
    check=relative(bf16=8e-3, fp32=1e-5),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    raise NotImplementedError("problem.py: inputs(size, draw) returns the arguments of rank draw.rank as a tuple")


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    raise NotImplementedError("problem.py: oracle(...) returns what each rank has to return, in float64")


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    raise NotImplementedError("problem.py: cost(...) returns the least link bytes, HBM bytes and FLOPs of one rank")


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    raise NotImplementedError("problem.py: near_misses(...) yields (name, wrong outputs) for each trap of this problem")
'''

PLACEHOLDERS = ("TITLE", "CONTRACT", "GROUP", "PARALLELISM", "ORIGIN")
"""Words that stand for what an author has to write; the generic tests refuse them."""


def write_scaffold(name: str, number: int, root: Path) -> Path:
    """Make the folder of a new problem under `root`.

    Raises:
        UsageError: the name is no lowercase identifier, or the folder exists.
    """
    if not re.fullmatch(r"[a-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"a problem's name is its folder: a lowercase letter, then letters, digits and _; got {name!r}."
        )
    folder = root / name
    if folder.exists():
        raise UsageError(f"{folder} is already there. Choose another name, or edit its two files.")
    folder.mkdir()
    (folder / "reference.py").write_text(_REFERENCE, encoding="utf-8")
    (folder / "problem.py").write_text(_PROBLEM.format(name=name, number=number), encoding="utf-8")
    return folder
