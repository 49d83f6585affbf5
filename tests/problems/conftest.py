"""The rank processes that all tests of baselines share, and what the baselines returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from gloo_pool import GlooPool, Outcome
from problem_cases import WORLD_SIZES, Case, inputs_of, trials


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    pool = GlooPool(tmp_path_factory.mktemp("gloo"), max(WORLD_SIZES))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def run_baseline(gloo: GlooPool) -> Callable[[Case], list[list[Outcome]]]:
    """Outcomes by trial and rank of a case's baseline, run once a session."""
    outcomes: dict[Case, list[list[Outcome]]] = {}

    def run(case: Case) -> list[list[Outcome]]:
        if case not in outcomes:
            calls = [inputs_of(trial) for trial in trials(case)]
            outcomes[case] = gloo.run(case.problem.reference_path, calls, case.world_size)
        return outcomes[case]

    return run
