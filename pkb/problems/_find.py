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


def list_problems(
    *, group: str | None = None, parallelism: str | None = None, world_size: int | None = None
) -> list[Problem]:
    """All problems by number, or those of a group, with a word in their parallelism (`tp`), for a world size.

    Raises:
        UsageError: no problem is left; the message names what there is.
    """
    everything = _all()
    found = [
        problem
        for problem in everything
        if group in (None, problem.group)
        and (parallelism is None or parallelism.lower() in _words(problem.parallelism))
        and (world_size is None or world_size in problem.world_sizes)
    ]
    if found:
        return found
    asked = {"group": group, "parallelism": parallelism, "world size": world_size}
    known = {
        "group": {problem.group for problem in everything},
        "parallelism": {word for problem in everything for word in _words(problem.parallelism)},
        "world size": {str(size) for problem in everything for size in problem.world_sizes},
    }
    named = " and ".join(f"{what} {value!r}" for what, value in asked.items() if value is not None)
    there_are = "; ".join(
        f"{what}: {', '.join(sorted(known[what]))}" for what, value in asked.items() if value is not None
    )
    raise UsageError(f"no problem has {named}. There are {there_are}.")


def get_problem(name: str | int) -> Problem:
    """The problem with an id, a number, or a unique prefix of an id.

    Raises:
        UsageError: nothing matches (the nearest ids are named), or several do.
    """
    key = str(name).strip()
    if key in _folders():
        # Alone, since another one may be half written.
        return read_problem(FOLDER / key)
    everything = _all()
    if key.isdigit():
        matches = [problem for problem in everything if problem.number == int(key)]
    else:
        matches = [problem for problem in everything if key and problem.id.startswith(key)]
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


def _words(parallelism: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", parallelism.lower()))


def _folders() -> list[str]:
    return [folder.name for folder in FOLDER.iterdir() if folder.is_dir() and folder.name[0].isalpha()]


@cache
def _all() -> tuple[Problem, ...]:
    return tuple(sorted((read_problem(FOLDER / name) for name in _folders()), key=lambda problem: problem.number))
