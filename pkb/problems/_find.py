"""Finding problems: discovery is a directory listing, and reading the facts of one needs no torch."""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

from pkb.problems import _check
from pkb.problems._spec import FOLDER, Problem, with_identity
from pkb.records.errors import UsageError

_FACTS = re.compile(r"^PROBLEM = Problem\(.*?^\)", re.DOTALL | re.MULTILINE)


def list_problems(*, group: str | None = None) -> list[Problem]:
    """All problems by number, or those of one group.

    Raises:
        UsageError: no problem is in that group.
    """
    everything = _all()
    if group is None:
        return list(everything)
    found = [problem for problem in everything if problem.group == group]
    if not found:
        groups = ", ".join(sorted({problem.group for problem in everything}))
        raise UsageError(f"no problem is in group {group!r}; groups are {groups}.")
    return found


def get_problem(name: str | int) -> Problem:
    """The problem with an id, a number, or a unique prefix of an id.

    Raises:
        UsageError: nothing matches (the nearest ids are named), or several do.
    """
    key = str(name).strip()
    everything = _all()
    if key.isdigit():
        matches = [problem for problem in everything if problem.number == int(key)]
    else:
        matches = [problem for problem in everything if problem.id == key]
        matches = matches or [problem for problem in everything if key and problem.id.startswith(key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{key!r} stands for several problems: {', '.join(p.id for p in matches)}. Give more of it.")
    near = difflib.get_close_matches(key, [problem.id for problem in everything], n=3, cutoff=0.3)
    hint = f" Nearest: {', '.join(near)}." if near else ""
    raise UsageError(f"no problem {key!r}.{hint} See `pkb list`.")


def read_problem(folder: Path) -> Problem:
    """Facts of the problem in a folder, from the literal `PROBLEM = Problem(...)` of its problem.py.

    The statement alone is evaluated, so that a listing of all problems imports no torch.

    Raises:
        UsageError: a file is missing, or the statement is absent or not self-contained.
    """
    path = folder / "problem.py"
    for file in (path, folder / "reference.py"):
        if not file.is_file():
            raise UsageError(f"{file}: missing. A problem is a folder with reference.py and problem.py.")
    statement = _FACTS.search(path.read_text(encoding="utf-8"))
    if statement is None:
        raise UsageError(f"{path}: expected a statement `PROBLEM = Problem(` that ends with `)` on its own line.")
    names: dict[str, Any] = {
        "Problem": Problem,
        **{name: getattr(_check, name) for name in dir(_check) if not name.startswith("_")},
    }
    try:
        exec(compile(statement.group(), str(path), "exec"), names)
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: PROBLEM must be made of literals and checks only ({error}).") from error
    problem: Problem = names["PROBLEM"]
    return with_identity(problem, folder)


@cache
def _all() -> tuple[Problem, ...]:
    folders = [f for f in FOLDER.iterdir() if f.is_dir() and f.name[0].isalpha()]
    return tuple(sorted((read_problem(folder) for folder in folders), key=lambda problem: problem.number))
