"""Every cheat of the corpus is caught, and every honest twin stays correct."""

from __future__ import annotations

from collections.abc import Iterator

import clock_cases
import pytest
import race_cases
import rank_cases
import torch
import value_cases
from cheat_case import CHEATS, Case

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.records.verdict import Status, Verdict

CASES = [*clock_cases.CASES, *value_cases.CASES, *rank_cases.CASES, *race_cases.CASES]


class _Judges:
    """One judge for each configuration, kept while cases of it follow each other."""

    def __init__(self) -> None:
        self._config: JudgeConfig | None = None
        self._judge: Judge | None = None

    def of(self, config: JudgeConfig) -> Judge:
        if self._judge is None or config != self._config:
            self.close()
            self._config, self._judge = config, Judge(config)
        return self._judge

    def close(self) -> None:
        if self._judge is not None:
            self._judge.close()


@pytest.fixture(scope="module")
def judges() -> Iterator[_Judges]:
    made = _Judges()
    yield made
    made.close()


def _parameters() -> list[object]:
    """Cases in an order in which judges are seldom started anew."""
    ordered = sorted(CASES, key=lambda case: (case.config().model_dump_json(), case.id))
    gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
    return [pytest.param(case, id=case.id, marks=gpu if case.device != "cpu" else []) for case in ordered]


@pytest.mark.parametrize("case", _parameters())
def test_cheat_is_caught_and_its_twin_is_not(judges: _Judges, case: Case) -> None:
    judge = judges.of(case.config())
    cheat = judge.judge(case.problem, CHEATS / case.file, more=True)
    twin = judge.judge(case.problem, CHEATS / case.twin, more=True)
    assert twin.status is Status.CORRECT, str(twin)
    if case.status:
        assert cheat.status in case.status, str(cheat)
        if case.causes:
            assert cheat.failure is not None
            assert cheat.failure.cause in case.causes, str(cheat)
    else:
        assert cheat.status is Status.CORRECT, str(cheat)
        assert _is_marked(cheat), cheat.mechanisms
        assert not _is_marked(twin), twin.mechanisms


def _is_marked(verdict: Verdict) -> bool:
    return not verdict.solved
