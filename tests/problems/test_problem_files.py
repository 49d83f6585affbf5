"""The two files of every problem: what they import, offer and say."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from problem_cases import Case, inputs_of, trials

from pkb.problems._find import list_problems
from pkb.problems._scaffold import PLACEHOLDERS
from pkb.problems._spec import FOLDER, Problem, _import

REFERENCE_IMPORTS = {
    "collections.abc",
    "functools",
    "itertools",
    "math",
    "torch",
    "torch.distributed",
    "torch.nn",
    "torch.nn.functional",
    "typing",
}
PROBLEM_IMPORTS = {
    "collections.abc",
    "dataclasses",
    "functools",
    "itertools",
    "math",
    "pkb.problems._check",
    "pkb.problems._draw",
    "pkb.problems._spec",
    "torch",
    "torch.nn",
    "torch.nn.functional",
    "typing",
}
MACHINERY = {
    f"pkb.problems._{name}" for name in ("checks", "expected", "find", "footprint", "numbers", "scaffold", "tree")
}
"""Private modules that no problem needs to know."""


def test_folder_holds_two_files(problem: Problem) -> None:
    names = {path.name for path in problem.folder.iterdir() if path.name != "__pycache__"}
    assert names == {"reference.py", "problem.py"}


def test_nothing_is_left_of_the_scaffold(problem: Problem) -> None:
    left = []
    for path in (problem.reference_path, problem.folder / "problem.py"):
        words = set(re.findall(r"\b[A-Z]+\b", path.read_text(encoding="utf-8")))
        left += [f"{path.name}: replace {', '.join(found)}" for found in [sorted(words & set(PLACEHOLDERS))] if found]
    assert not left, "; ".join(left)


def test_files_import_only_what_they_may(problem: Problem) -> None:
    assert _imports(problem.reference_path) <= REFERENCE_IMPORTS
    assert _imports(problem.folder / "problem.py") <= PROBLEM_IMPORTS | _shared_modules()


def test_reference_offers_one_typed_function(problem: Problem) -> None:
    tree = ast.parse(problem.reference_path.read_text(encoding="utf-8"))
    defined = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    assert [node.name for node in defined if not node.name.startswith("_")] == ["solution"]
    parameters = inspect.signature(_solution(problem)).parameters.values()
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD and p.annotation is not p.empty for p in parameters)
    assert inspect.signature(_solution(problem)).return_annotation is not inspect.Signature.empty


def test_contract_names_every_argument(problem: Problem) -> None:
    for name in inspect.signature(_solution(problem)).parameters:
        assert re.search(rf"`{name}`", problem.contract()), name


def test_contract_has_a_title_and_a_body(problem: Problem) -> None:
    title, blank, *body = problem.contract().splitlines()
    assert title.endswith(".") and not blank, "a title that ends with a full stop, then a blank line"
    assert 3 <= len(body) <= 40, "3 to 40 lines of contract below the title"


def test_inputs_fit_the_solution(input_case: Case) -> None:
    problem = input_case.problem
    signature = inspect.signature(_solution(problem))
    written = problem.positions((*problem.in_place, *problem.may_write))
    for trial in trials(input_case):
        for arguments in inputs_of(trial):
            assert isinstance(arguments, tuple)
            signature.bind(*arguments)
            assert all(position < len(arguments) for position in written.values()), trial


def test_numbers_are_unique() -> None:
    numbers = [problem.number for problem in list_problems()]
    assert len(set(numbers)) == len(numbers)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def _shared_modules() -> set[str]:
    """What several problems share: private modules beside them that import no more than a problem may."""
    files = {f"pkb.problems.{path.stem}": path for path in FOLDER.glob("_[a-z]*.py")}
    topics = files.keys() - MACHINERY
    return {name for name in topics if _imports(files[name]) <= {"__future__", *PROBLEM_IMPORTS, *topics}}


def _solution(problem: Problem) -> Callable[..., Any]:
    solution: Callable[..., Any] = _import(problem.reference_path, f"_reference_{problem.id}").solution
    return solution
