"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkb.records.machine import Fingerprint
from pkb.records.solution import Solution
from pkb.records.verdict import CAUSES_OF, DeviceMode, Failure, Phase, Status, Trial, Verdict


@pytest.fixture
def make_verdict() -> Callable[..., Verdict]:
    """Makes a consistent verdict of a status; keyword arguments replace fields."""

    def make(status: str = "correct", **fields: Any) -> Verdict:
        failure = None
        if status != "correct":
            cause = sorted(CAUSES_OF[Status(status)])[0]
            failure = Failure(phase=Phase.CHECK, cause=cause, detail="planted")
        base: dict[str, Any] = {
            "problem": "allreduce",
            "problem_sha256": "0" * 64,
            "solution": Solution(name="mine", path="mine.py", files=("mine.py",), sha256="1" * 64),
            "status": Status(status),
            "failure": failure,
            "device": DeviceMode.CUDA,
            "world_size": 4,
            "dtype": "bf16",
            "solution_class": "library" if fields.get("library") else "custom",
            "trials": (Trial(size="tiny", index=0, exact=False, num_calls=3, passed=status == "correct"),),
            "fingerprint": Fingerprint(
                host="abc",
                device_name="NVIDIA H200",
                num_devices=4,
                num_cpus=8,
                memory_bytes=1,
                torch="2.13.0",
                python="3.12.1",
                system="Linux",
                pkb="0.1.0",
            ),
        }
        return Verdict(**{**base, **fields})

    return make


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--problem",
        action="append",
        default=[],
        metavar="NAME",
        help="run the generic tests of problems on this problem only; may be given several times",
    )
