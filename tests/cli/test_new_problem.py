"""`pkb new-problem` and `pkb check-problem`: what a newcomer is told, step by step."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from commands import ROOT, pkb_command

from pkb.problems._find import read_problem
from pkb.problems._scaffold import write_scaffold
from pkb.records.errors import UsageError


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with few problems, which new ones may be added to."""
    root = tmp_path_factory.mktemp("checkout")
    keep = {"allreduce", "allgather"}

    def others(folder: str, names: list[str]) -> set[str]:
        if Path(folder) != ROOT / "pkb" / "problems":
            return {name for name in names if name == "__pycache__"}
        return {name for name in names if name[0].isalpha() and name not in keep}

    for part in ("pkb", "tests"):
        shutil.copytree(ROOT / part, root / part, ignore=others)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_a_new_problem_is_told_what_to_write(checkout: Path) -> None:
    made = pkb_command("new-problem", "ring_shift", checkout=checkout)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        str(checkout / "pkb/problems/ring_shift" / name) for name in ("reference.py", "problem.py")
    ]
    assert "pkb check-problem ring_shift" in made.stderr
    reference, problem = (Path(line) for line in made.stdout.splitlines())
    next_step(checkout, "reference.py: replace CONTRACT, TITLE; problem.py: replace GROUP, ORIGIN, PARALLELISM")
    for path in (reference, problem):
        path.write_text(re.sub(r"\b(TITLE|CONTRACT|GROUP|ORIGIN|PARALLELISM)\b", "Sum of all", path.read_text()))
    next_step(checkout, "problem.py: inputs(size, draw) returns")
    fill_in(problem, "inputs", 'return (draw.normal(size["n"]),)')
    fill_in(problem, "cost", 'return Cost(2.0 * size["n"] * (world_size > 1), 4.0 * size["n"], 1.0 * size["n"])')
    fill_in(problem, "oracle", "return [sum(t.double() for t, in inputs_of_all_ranks)] * world_size")
    fill_in(problem, "near_misses", 'yield "mean", [one / (len(expected) + 1) for one in expected]')
    next_step(checkout, "reference.py: write the program")


def next_step(checkout: Path, words: str) -> None:
    """`check-problem` stops at these words."""
    checked = pkb_command("check-problem", "ring_shift", checkout=checkout)
    assert checked.returncode == 1
    assert words in checked.stdout


def fill_in(path: Path, function: str, statement: str) -> None:
    """Replace the statement that a function of the scaffold raises."""
    text = path.read_text()
    path.write_text(re.sub(rf"(def {function}\(.*\n    )raise .*", lambda found: found[1] + statement, text))


def test_a_finished_problem_passes(checkout: Path) -> None:
    checked = pkb_command("check-problem", "allgather", checkout=checkout)
    assert checked.returncode == 0, checked.stdout[-2000:]


def test_numbers_go_on(tmp_path: Path) -> None:
    problem = read_problem(write_scaffold("halo", 88, tmp_path))
    assert (problem.id, problem.number) == ("halo", 88)


@pytest.mark.parametrize("name", ["", "Halo", "2d", "a-b", "../up", "lambda", "a b"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="lowercase letter"):
        write_scaffold(name, 88, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_scaffold("halo", 88, tmp_path)
    with pytest.raises(UsageError, match="already there"):
        write_scaffold("halo", 89, tmp_path)


def test_an_unknown_problem_is_no_test_run() -> None:
    done = pkb_command("check-problem", "nowhere")
    assert done.returncode == 2
    assert "pkb new-problem nowhere" in done.stderr
