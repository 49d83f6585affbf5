"""Finding problems by id, number and prefix, and what is said about folders that are no problems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pkb.problems._find import get_problem, list_problems, read_problem
from pkb.records.errors import UsageError

REFERENCE = '"""Title of the problem.\n\nContract.\n"""\n'
PROBLEM = """
PROBLEM = Problem(
    number=900,
    group="collective",
    parallelism="any",
    origin="nowhere",
    world_sizes=(1, 2),
    sizes={"tiny": {"n": 3}, "tiny_odd": {"n": 5}, "base": {"n": 8}},
    check=relative(bf16=8e-3, fp32=1e-6, elements=ELEMENTS),
)
"""


def write_problem(folder: Path, *, reference: str = REFERENCE, problem: str = PROBLEM) -> Path:
    folder.mkdir()
    (folder / "reference.py").write_text(reference)
    (folder / "problem.py").write_text(problem)
    return folder


def test_problems_come_by_number() -> None:
    numbers = [problem.number for problem in list_problems()]
    assert numbers == sorted(numbers) and len(numbers) >= 13


def test_group_selects() -> None:
    found = list_problems(group="gemm")
    assert "allgather_gemm" in [problem.id for problem in found]
    assert {problem.group for problem in found} == {"gemm"}


def test_unknown_group_names_the_groups() -> None:
    with pytest.raises(UsageError, match=r"'gem'.*collective.*gemm"):
        list_problems(group="gem")


def test_parallelism_selects_by_word() -> None:
    found = list_problems(parallelism="TP")
    assert "tp_rms_norm" in [problem.id for problem in found]
    assert len(found) < len(list_problems())
    with pytest.raises(UsageError, match=r"parallelism 'xp'.*\btp\b"):
        list_problems(parallelism="xp")


def test_world_size_selects_and_filters_add_up() -> None:
    assert all(2 in problem.world_sizes for problem in list_problems(world_size=2))
    both = list_problems(group="norm", parallelism="tp")
    assert {(problem.group, problem.parallelism) for problem in both} == {("norm", "tp")}
    with pytest.raises(UsageError, match=r"group 'norm' and world size 3.*1, 2, 4, 8"):
        list_problems(group="norm", world_size=3)


@pytest.mark.parametrize("name", ["tp_rms_norm", 18, "18", "018", " tp_rms_norm ", "tp_rms"])
def test_problem_is_found_by_id_number_and_prefix(name: str | int) -> None:
    assert get_problem(name).id == "tp_rms_norm"


def test_id_wins_over_ids_that_it_begins() -> None:
    assert get_problem("allgather").number == 2


def test_ambiguous_prefix_names_the_problems() -> None:
    with pytest.raises(UsageError, match=r"several problems.*allgather.*alltoall"):
        get_problem("all")


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no problem 'allredcue'.*Nearest: .*allreduce"):
        get_problem("allredcue")


@pytest.mark.parametrize("name", ["9999", "", "zzzzzzzz"])
def test_unknown_names_without_a_near_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"no problem .* See `pkb list`"):
        get_problem(name)


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from pkb.problems._find import list_problems; "
        "assert list_problems(); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=root)


def test_folder_is_read(tmp_path: Path) -> None:
    problem = read_problem(write_problem(tmp_path / "some_name"))
    assert (problem.id, problem.title, problem.number) == ("some_name", "Title of the problem", 900)
    assert problem.sizes_named("tiny") == ("tiny", "tiny_odd")
    assert problem.contract().splitlines()[-1] == "Contract."


@pytest.mark.parametrize("name", ["reference.py", "problem.py"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_problem(tmp_path / "some_name")
    (folder / name).unlink()
    with pytest.raises(UsageError, match=rf"{name}: missing"):
        read_problem(folder)


def test_missing_statement_is_named(tmp_path: Path) -> None:
    folder = write_problem(tmp_path / "some_name", problem="NUMBER = 3\n")
    with pytest.raises(UsageError, match=r"problem\.py: expected a statement `PROBLEM = Problem\(`"):
        read_problem(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("900", "NUMBER"),
        ('    origin="nowhere",\n', ""),
        ("number=900", "numeral=900"),
        ("900", 'int("nine hundred")'),
    ],
)
def test_statement_that_is_no_literal_is_named(tmp_path: Path, old: str, new: str) -> None:
    folder = write_problem(tmp_path / "some_name", problem=PROBLEM.replace(old, new))
    with pytest.raises(UsageError, match=r"problem\.py: PROBLEM must be made of literals"):
        read_problem(folder)


@pytest.mark.parametrize(
    ("reference", "message"),
    [("import torch\n", "begin with a docstring"), ('"""\n"""\n', "first line is the title")],
)
def test_missing_title_is_named(tmp_path: Path, reference: str, message: str) -> None:
    folder = write_problem(tmp_path / "some_name", reference=reference)
    with pytest.raises(UsageError, match=rf"reference\.py: .*{message}"):
        read_problem(folder)


def test_missing_function_is_named(tmp_path: Path) -> None:
    imports = "from pkb.problems._check import ELEMENTS, relative\nfrom pkb.problems._spec import Problem\n"
    problem = read_problem(write_problem(tmp_path / "some_name", problem=imports + PROBLEM))
    with pytest.raises(UsageError, match=r"problem\.py: expected a function inputs"):
        problem.load()


def test_unknown_size_names_the_sizes() -> None:
    with pytest.raises(UsageError, match=r"tp_rms_norm has no size 'huge'.*tiny.*decode"):
        get_problem("tp_rms_norm").sizes_named("huge")
