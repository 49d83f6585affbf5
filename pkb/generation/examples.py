"""Shipped solutions as worked examples in prompts: folded into one file, and never of the problem that is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pkb
from pkb.records.attempt import Backend
from pkb.records.errors import UsageError

_CHOICES = {
    Backend.CUDA: ("allgather/sm_stores", "allreduce/cuda"),
    Backend.TRITON: ("allreduce/portable", "allgather/portable"),
    Backend.TORCH: ("allreduce/portable", "allgather/portable", "tp_rms_norm/portable"),
}
_NUM_EXAMPLES = {Backend.CUDA: 1, Backend.TRITON: 1, Backend.TORCH: 2}
"""A CUDA example is several times as long as one in torch, and says all that two would."""
_KERNEL_FILE = re.compile(r"Path\(__file__\)\.with_name\(\"(?P<name>[\w.]+)\"\)")


@dataclass(frozen=True)
class Example:
    """A worked example."""

    name: str
    """`problem/solution`."""
    code: str
    """One Python file."""


def examples_for(problem_id: str, backend: Backend) -> list[Example]:
    """One or two worked examples for a backend; none of them solves the problem."""
    names = [name for name in _CHOICES[backend] if name.split("/")[0] != problem_id]
    return [Example(name, bundle(_solutions() / name)) for name in names[: _NUM_EXAMPLES[backend]]]


def bundle(folder: Path) -> str:
    """The solution of a folder as one Python file, with its CUDA source in a raw string.

    Raises:
        UsageError: the folder has no solution.py, or the CUDA source cannot stand in a raw string.
    """
    main = folder / "solution.py"
    if not main.is_file():
        raise UsageError(f"{folder}: no solution.py in it.")
    code = main.read_text(encoding="utf-8")
    for name in dict.fromkeys(match["name"] for match in _KERNEL_FILE.finditer(code)):
        source = (folder / name).read_text(encoding="utf-8")
        if '"""' in source or source.endswith("\\"):
            raise UsageError(f"{folder / name}: cannot stand in a raw string.")
        code = _with_source(code, name, source)
    return code


def _with_source(code: str, name: str, source: str) -> str:
    """The file with a string in place of the path to a source file, bound in front of the first constant."""
    code = _KERNEL_FILE.sub(lambda match: "SOURCE" if match["name"] == name else match.group(), code)
    if "Path(" not in code:
        code = code.replace("from pathlib import Path\n", "")
    first_constant = re.search(r"^(?:# [^\n]*\n)*[A-Z_]+ = ", code, re.MULTILINE)
    position = first_constant.start() if first_constant else len(code)
    return f'{code[:position]}SOURCE = r"""\n{source}"""\n{code[position:]}'


def _solutions() -> Path:
    """Shipped solutions: beside the package in a checkout, inside it once installed."""
    package = Path(pkb.__file__).parent
    beside = package.parent / "solutions"
    return beside if beside.is_dir() else package / "_solutions"
