"""Judging for many attempts at once: builds side by side, and one candidate at a time on the GPUs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.problems._spec import Problem
from pkb.records.verdict import DeviceMode, Status, Verdict


class Level(StrEnum):
    """How far a candidate is judged."""

    BUILD = "build"
    """Screened and compiled."""
    CHECK = "check"
    """And correct at tiny sizes."""
    TIME = "time"
    """In full."""


JudgeCode = Callable[[Problem, str, Level], Awaitable[Verdict]]
"""Judges code of a model; never raises for a bad candidate."""


class Referee:
    """Judges code; a context manager that ends all processes at its end."""

    def __init__(self, config: JudgeConfig) -> None:
        """Nothing is started yet."""
        self._config = config
        self._judges: dict[JudgeConfig, Judge] = {}
        self._turn = asyncio.Lock()
        self._builds = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))

    def __enter__(self) -> Referee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all rank processes."""
        judges, self._judges = list(self._judges.values()), {}
        for judge in judges:
            judge.close()

    async def judge(self, problem: Problem, code: str, level: Level) -> Verdict:
        """Judge a Python file.

        Raises:
            UsageError: the problem cannot be judged like this on this machine.
        """
        with tempfile.TemporaryDirectory(prefix="pkb-candidate-") as folder:
            file = Path(folder) / "candidate.py"
            file.write_text(code, encoding="utf-8", errors="replace")
            if level is Level.BUILD or await asyncio.to_thread(self._has_gpus):
                built = await self._build(problem, file)
                if level is Level.BUILD or built.status is not Status.CORRECT:
                    return built
            async with self._turn:
                return await asyncio.to_thread(self._judge, problem, file, level)

    def _has_gpus(self) -> bool:
        from pkb.launch.device import resolve_mode

        return resolve_mode(self._config.device, self._config.world_size) is not DeviceMode.CPU

    async def _build(self, problem: Problem, file: Path) -> Verdict:
        """Compile on the CPU, while another candidate has the GPUs; they find what was built in the cache."""
        async with self._builds:
            return await asyncio.to_thread(_build_alone, problem, file, config_for(problem, self._config))

    def _judge(self, problem: Problem, file: Path, level: Level) -> Verdict:
        config = config_for(problem, self._config)
        if level is Level.CHECK:
            config = config.model_copy(update={"size": "tiny", "rounds": 0})
        with _machine_lock(self._judge_of(config).mode):
            verdict = self._judge_of(config).judge(problem, file)
            if verdict.status is Status.INVALID:
                # What failed may be this set of processes: the second try gets new ones.
                self._judges.pop(config).close()
                verdict = self._judge_of(config).judge(problem, file)
        return verdict

    def _judge_of(self, config: JudgeConfig) -> Judge:
        if config not in self._judges:
            self._judges[config] = Judge(config)
        return self._judges[config]


def config_for(problem: Problem, config: JudgeConfig) -> JudgeConfig:
    """The configuration, with the nearest world size and dtype that the problem allows."""
    smaller = [size for size in problem.world_sizes if size <= config.world_size]
    return config.model_copy(
        update={
            "world_size": max(smaller) if smaller else min(problem.world_sizes),
            "dtype": config.dtype if config.dtype in problem.dtypes else problem.dtypes[0],
        }
    )


def _build_alone(problem: Problem, file: Path, config: JudgeConfig) -> Verdict:
    with Judge(config) as judge:
        return judge.build(problem, file)


@contextmanager
def _machine_lock(mode: DeviceMode) -> Iterator[None]:
    """Wait until no other run of this user has the GPUs: times would be wrong."""
    if mode is DeviceMode.CPU:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"pkb-gpus-{os.getuid()}.lock"
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
