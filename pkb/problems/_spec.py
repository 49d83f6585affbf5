"""What a problem is: fixed facts, and the functions of its two files. Importable without torch."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from pkb.records.errors import UsageError

if TYPE_CHECKING:
    import torch

    from pkb.problems._check import Check
    from pkb.problems._draw import Draw

Dtype = Literal["bf16", "fp32"]
Size = Mapping[str, Any]
"""Dimensions of one size by name. The key `exact` (True) marks a size that only exact trials use."""

FOLDER = Path(__file__).parent
_SHARED_IMPORT = re.compile(r"^from pkb\.problems\.(_\w+) import", re.MULTILINE)
_EVERY_PROBLEM_IMPORTS = {"_check", "_draw", "_spec"}
"""Not hashed with a problem: what they do is the judge's, and a verdict names its commit."""


@dataclass(frozen=True)
class Cost:
    """Minimum work of one rank for one call: the numerators of the roofline."""

    link_bytes: float
    """Bytes that the busiest rank must send or receive, the larger of the two."""
    hbm_bytes: float
    """Bytes read from and written to device memory, each operand once."""
    flops: float
    """Floating-point operations."""


@dataclass(frozen=True)
class Problem:
    """Something that all ranks have to compute; the id is the folder name, the number only for display."""

    number: int
    group: str
    parallelism: str
    origin: str
    world_sizes: tuple[int, ...]
    sizes: Mapping[str, Size]
    check: Check
    exact_trial: bool = False
    """True when `inputs` honors `draw.exact`: integers so small that every summing order is exact."""
    dtypes: tuple[Dtype, ...] = ("bf16", "fp32")
    """Working dtypes that the problem is judged in; one alone where the contract fixes the dtype."""
    agree: bool = False
    """All ranks must return the same bits; `Expected.agree` says so of one output."""
    in_place: tuple[str, ...] = ()
    """Arguments whose state after the call is part of the result: the oracle returns an `Outcome` for each rank."""
    may_write: tuple[str, ...] = ()
    """Arguments that a solution may overwrite and whose state is not judged."""
    id: str = ""
    title: str = ""
    folder: Path = field(default=FOLDER)

    def sizes_named(self, name: str) -> tuple[str, ...]:
        """Names of the sizes that `name` stands for: itself, and its variants `name_...`.

        Raises:
            UsageError: there is no such size.
        """
        found = tuple(s for s in self.sizes if s == name or s.startswith(f"{name}_"))
        if not found:
            raise UsageError(f"{self.id} has no size {name!r}; it has {', '.join(self.sizes)}.")
        return found

    def require(self, world_size: int, dtype: Dtype) -> None:
        """Make sure that so many ranks can solve the problem in a dtype.

        Raises:
            UsageError: they cannot; the message says which can.
        """
        if world_size not in self.world_sizes:
            allowed = ", ".join(map(str, self.world_sizes))
            raise UsageError(f"{self.id} runs on {allowed} ranks, asked for {world_size}. Use --world-size.")
        if dtype not in self.dtypes:
            allowed = ", ".join(self.dtypes)
            raise UsageError(f"{self.id} is judged in {allowed} only, asked for {dtype}. Use --dtype.")

    @property
    def reference_path(self) -> Path:
        """The file that models are shown and that is timed as the baseline."""
        return self.folder / "reference.py"

    @property
    def sha256(self) -> str:
        """Hash over `reference.py`, `problem.py` and the private modules that it shares with other problems."""
        files = [self.folder / "reference.py", self.folder / "problem.py"]
        for file in files:
            names = set(_SHARED_IMPORT.findall(file.read_text(encoding="utf-8"))) - _EVERY_PROBLEM_IMPORTS
            files += [path for name in sorted(names) if (path := FOLDER / f"{name}.py") not in files]
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def contract(self) -> str:
        """Docstring of `reference.py`: what each rank holds and must return."""
        return inspect.cleandoc(_docstring(self.reference_path))

    def argument_names(self) -> tuple[str, ...]:
        """Names of the positional arguments of the reference's `solution`, in order."""
        tree = ast.parse(self.reference_path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "solution":
                return tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
        raise UsageError(f"{self.reference_path}: expected a function solution(...), found none.")

    @property
    def writes(self) -> bool:
        """Calls may write to arguments, so each needs fresh ones."""
        return bool(self.in_place or self.may_write)

    def positions(self, names: Sequence[str]) -> dict[str, int]:
        """Positions of arguments by name.

        Raises:
            UsageError: the reference's `solution` has no such argument.
        """
        known = self.argument_names()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(f"{self.id} has no argument {unknown[0]!r}; it has {', '.join(known)}.")
        return {name: known.index(name) for name in names}

    def num_arguments(self) -> int:
        """How many positional arguments a solution has to take."""
        return len(self.argument_names())

    def load(self) -> Judgeside:
        """Import `problem.py` (needs torch) and return its functions.

        Raises:
            UsageError: a function is missing, named with the file it should be in.
        """
        module = _import(self.folder / "problem.py", f"_pkb_problem_{self.id}")
        for name in ("inputs", "oracle", "cost"):
            if not callable(getattr(module, name, None)):
                raise UsageError(f"{self.folder / 'problem.py'}: expected a function {name}(...), found none.")
        return Judgeside(
            inputs=module.inputs,
            oracle=module.oracle,
            cost=module.cost,
            near_misses=getattr(module, "near_misses", _no_near_misses),
        )


@dataclass(frozen=True)
class Judgeside:
    """The functions of `problem.py`."""

    inputs: Callable[[Size, Draw], tuple[Any, ...]]
    """`inputs(size, draw)`: positional arguments of `solution` on rank `draw.rank`."""
    oracle: Callable[[list[tuple[Any, ...]], int], list[Any]]
    """`oracle(inputs_of_all_ranks, world_size)`: what each rank must return; see `_check.Expected`."""
    cost: Callable[[Size, int, Dtype], Cost]
    """`cost(size, world_size, dtype)`: minimum work of one rank."""
    near_misses: Callable[[list[Any], list[tuple[Any, ...]]], Iterator[tuple[str, list[Any]]]]
    """`near_misses(expected, inputs_of_all_ranks)`: (name, wrong outputs of all ranks) that the check must refuse."""


@dataclass(frozen=True)
class Group:
    """An argument that stands for a process group: the ranks process makes it and passes the part it is in."""

    parts: tuple[tuple[int, ...], ...]
    """Disjoint tuples of ranks that together hold every rank that takes part."""

    @staticmethod
    def whole(world_size: int) -> Group:
        """All ranks in one part."""
        return Group((tuple(range(world_size)),))

    @staticmethod
    def inner(world_size: int, size: int) -> Group:
        """Consecutive blocks of `size` ranks: rank = block * size + place."""
        return Group(tuple(tuple(range(first, first + size)) for first in range(0, world_size, size)))

    @staticmethod
    def outer(world_size: int, size: int) -> Group:
        """The ranks at the same place in consecutive blocks of `size` ranks."""
        return Group(tuple(tuple(range(place, world_size, size)) for place in range(size)))

    def part_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the part that `rank` is in."""
        return next(part for part in self.parts if rank in part)


def dtype_bytes(dtype: Dtype) -> int:
    """Bytes of one element of the working dtype."""
    return 4 if dtype == "fp32" else 2


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch dtype of a dtype's short name."""
    import torch

    return {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]


def with_identity(problem: Problem, folder: Path) -> Problem:
    """The problem with its id, title and folder filled in from the folder it lies in."""
    first_line = _docstring(folder / "reference.py").strip().splitlines()[:1]
    if not first_line:
        raise UsageError(f"{folder / 'reference.py'}: expected a docstring whose first line is the title.")
    return replace(problem, id=folder.name, title=first_line[0].rstrip("."), folder=folder)


def _docstring(path: Path) -> str:
    """Text of a module's docstring, found without parsing the rest of the file."""
    text = path.read_text(encoding="utf-8")
    parts = text.split('"""', 2)
    if len(parts) < 3 or parts[0].strip(" \nr"):
        raise UsageError(f'{path}: expected the file to begin with a docstring in """.')
    return parts[1]


def _import(path: Path, name: str) -> ModuleType:
    """Import a file under a private name and leave no trace of it in sys.modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _no_near_misses(
    expected: list[Any], inputs_of_all_ranks: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[str, list[Any]]]:
    yield from ()
