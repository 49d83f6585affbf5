"""What the generic tests are run on, and the rank processes that the tests of baselines share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gloo_pool import GlooPool, Reply
from problem_cases import Case, all_cases, inputs_of, problem_of, trials

from pkb.problems._find import list_problems
from pkb.problems._spec import FOLDER

_FIRST = ("test_problem_files", "test_problem_inputs", "test_costs", "test_refusals")
"""Modules in the order in which an author writes what they test."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = _names(metafunc.config)
    for fixture in ("case", "input_case", "peer_case"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [_param(case) for case in all_cases(names, fixture)])
    if "problem_id" in metafunc.fixturenames:
        metafunc.parametrize("problem_id", names)
    if "problem" in metafunc.fixturenames:
        metafunc.parametrize("problem", [problem_of(name) for name in names], ids=names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --problem: without the tests that are about none in particular, and in the order of writing."""
    for item in items:
        if group := _group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    if not config.getoption("--problem"):
        return
    wanted = [item for item in items if _group_of(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _group_of(item)])
    order = {name: place for place, name in enumerate(_FIRST)}
    items[:] = sorted(wanted, key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    pool = GlooPool(tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def run_baseline(gloo: GlooPool) -> Callable[[Case], list[list[Reply]]]:
    """Replies by trial and rank of a case's baseline, run once a session."""
    replies: dict[Case, list[list[Reply]]] = {}

    def run(case: Case) -> list[list[Reply]]:
        if case not in replies:
            calls = [inputs_of(trial) for trial in trials(case)]
            replies[case] = gloo.run(case.problem.reference_path, calls, case.world_size)
        return replies[case]

    return run


def _names(config: pytest.Config) -> list[str]:
    """Ids of the problems to test; only those asked for are read, since others may be half written."""
    asked: list[str] = config.getoption("--problem")
    for name in asked:
        if not (FOLDER / name).is_dir():
            raise pytest.UsageError(f"--problem {name}: there is no folder {FOLDER / name}")
    return asked or [problem.id for problem in list_problems()]


def _param(case: Case) -> Any:
    return pytest.param(case, marks=[pytest.mark.slow] if case.is_slow else [], id=str(case))


def _group_of(item: pytest.Item) -> str:
    """What tests of one problem on as many ranks have in common: they share inputs and answers, so one process runs
    them where tests are distributed. Empty for a test that is about no problem in particular.
    """
    values = getattr(getattr(item, "callspec", None), "params", {})
    cases = [value for value in values.values() if isinstance(value, Case)]
    if cases:
        return f"{cases[0].problem_id}-w{cases[0].world_size}"
    problems = [getattr(values[name], "id", values[name]) for name in ("problem_id", "problem") if name in values]
    return f"{problems[0]}-w1" if problems else ""
