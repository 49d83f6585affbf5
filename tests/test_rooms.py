"""The structure of the package: which room may import which, how large things may get, what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pkb

PACKAGE = Path(pkb.__file__).parent
MODULES = sorted(f for f in PACKAGE.rglob("*.py") if "__pycache__" not in f.parts)

# room -> rooms that it may import. `symm` and `cuda` are what solutions get: beside `symm` they know errors only.
ARROWS = {
    "records": set(),
    "symm": {"records"},
    "cuda": {"records", "symm"},
    "problems": {"records"},
    "launch": {"records", "symm", "cuda", "problems"},
    "judging": {"records", "problems", "launch"},
    "generation": {"records", "problems", "launch", "judging"},
    "reporting": {"records"},
    "cli": {"records", "problems", "launch", "judging", "generation", "reporting"},
}
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 7
# Options of the command line are its arguments, however many a command has.
COMMANDS = {"cli"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "pkb":
                yield from ((node.lineno, f"pkb.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_to_its_left(path: Path) -> None:
    if path.parent == PACKAGE:
        return
    allowed = ARROWS[room_of(path)] | {room_of(path)}
    wrong = [
        f"line {line}: {name}"
        for line, name in imports_of(path)
        if name.startswith("pkb.") and name.split(".")[1] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
            # A problem's arguments are its contract, a command's are its options.
            if room_of(path) not in COMMANDS and path.name != "reference.py":
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                assert count <= MAX_ARGUMENTS, f"{node.name} has {count} arguments"


def test_rooms_are_those_of_the_table() -> None:
    found = {f.name for f in PACKAGE.iterdir() if f.is_dir() and f.name[0].isalpha()}
    assert found == set(ARROWS)


def test_public_names_are_sorted_and_all_exist() -> None:
    assert pkb.__all__ == sorted(pkb.__all__)
    for name in pkb.__all__:
        assert getattr(pkb, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        pkb.no_such_name  # noqa: B018


@pytest.mark.parametrize("statement", ["import pkb", "import pkb.cli.main", "import pkb.cli.list_"])
def test_importing_is_cheap(statement: str) -> None:
    heavy = {"torch", "numpy", "rich", "jinja2", "cuda"}
    script = f"import sys; {statement}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
