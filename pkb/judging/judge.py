"""Judging: from a solution file to a verdict. Owns secrets, the order of phases, and every decision."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import TracebackType
from typing import Any

from pkb.judging.baseline import BaselineRanks
from pkb.judging.candidate import Candidate
from pkb.judging.check import Truth
from pkb.judging.config import JudgeConfig
from pkb.judging.draft import Draft, Listener, Stop, ignore
from pkb.judging.loading import load_solution, prepare_ranks
from pkb.judging.schedule import Schedule, make_schedule, rank_bytes
from pkb.judging.screen import screen
from pkb.launch.device import free_bytes, num_threads_per_rank, rank_memory_limit, resolve_mode
from pkb.launch.ranks import Layout, Nursery, RankSet
from pkb.launch.sandbox import LAYERS
from pkb.problems._find import get_problem
from pkb.problems._spec import Judgeside, Problem
from pkb.records.errors import HarnessError, UsageError
from pkb.records.solution import Solution
from pkb.records.verdict import Cause, DeviceMode, Failure, Phase, Status, Verdict

_MAX_SHARED_GPU_RANKS = 8
_MAX_TIMED_BYTES = 16 * 1024**3
_TIMED_SHARE = 4
"""Arguments of a timed block take at most this part of a rank's share of free memory, and that many bytes."""


class Judge:
    """Judges candidates one after another; keeps a set of ranks started ahead for the next one.

    Use it as a context manager: leaving it ends every process that it started.
    """

    def __init__(self, config: JudgeConfig | None = None, *, listener: Listener = ignore) -> None:
        """Start the process that ranks are forked from.

        Args:
            config: how to judge; defaults to `JudgeConfig()`.
            listener: told of every phase and step, for a progress line.

        Raises:
            UsageError: this machine cannot run the mode that the configuration asks for.
        """
        self.config = config or JudgeConfig()
        self._listener = listener
        self._nursery = Nursery(sandbox=self.config.isolation != "off")
        self._spare: RankSet | None = None
        self._baseline: BaselineRanks | None = None
        try:
            self.mode = _mode(self.config)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        try:
            self._end_helpers()
        finally:
            self._nursery.close()

    def judge(self, problem: Problem | str | int, path: str | Path, *, more: bool = False) -> Verdict:
        """Judge a solution; a bad candidate never raises, it gets a verdict that says why.

        Args:
            problem: the problem, or its id, number, or a unique prefix of its id.
            path: a Python file that defines `solution(...)`, or a folder with `solution.py`.
            more: another candidate will follow; its ranks are started ahead.

        Raises:
            UsageError: no such problem, file or size, or the problem cannot be run like this on this machine.
        """
        return self._run(_problem(problem), Solution.read(path), against_baseline=True, more=more)

    def time_baseline(self, problem: Problem | str | int, *, more: bool = False) -> Verdict:
        """Check and time a problem's own reference; the verdict has times but no speedup. As `judge` otherwise."""
        found = _problem(problem)
        solution = Solution.read(found.reference_path).model_copy(update={"name": f"{found.id}/reference"})
        return self._run(found, solution, against_baseline=False, more=more)

    def build(self, problem: Problem | str | int, path: str | Path) -> Verdict:
        """Only screen and build a solution: needs no GPU, and compiles for sm_90a where there is none."""
        found, solution = _problem(problem), Solution.read(path)
        draft = Draft(found, solution, self.config, DeviceMode.CPU, self._listener, build_only=True)
        try:
            _screen(draft)
            with RankSet(self._nursery, Layout(DeviceMode.CPU, 1, num_threads=1, memory_bytes=0)) as ranks:
                self._note_isolation(draft)
                self._load(draft, ranks)
        except Stop as stop:
            return draft.verdict(stop.status, stop.failure)
        return draft.verdict(Status.CORRECT)

    def _run(self, problem: Problem, solution: Solution, *, against_baseline: bool, more: bool) -> Verdict:
        code = problem.load()
        timed = self.config.rounds > 0 and self.mode is not DeviceMode.SHARED_GPU
        schedule = self._plan(problem, code, timed=timed)
        draft = Draft(problem, solution, self.config, self.mode, self._listener)
        if self.config.rounds > 0 and not timed:
            draft.note("shared-gpu: ranks take turns on one GPU, so nothing was timed")
        if schedule.light_trials:
            draft.note(f"one random trial only at {', '.join(schedule.light_trials)}: its data are large")
        draft.seed = self.config.seed or secrets.token_hex(32)
        truth = Truth(problem, code, self.config, schedule, bytes.fromhex(draft.seed), self._oracle_device())
        try:
            _screen(draft)
            with self._take_ranks() as ranks:
                self._note_isolation(draft)
                if more:
                    self._spare = RankSet(self._nursery, self._layout())
                prepare_ranks(ranks, problem, code, self.config, schedule, truth.secret)
                self._load(draft, ranks)
                candidate = Candidate(truth, ranks, draft)
                candidate.check()
                candidate.profile()
                if timed:
                    candidate.time(self._baseline_beside(truth) if against_baseline else None)
        except Stop as stop:
            return draft.verdict(stop.status, stop.failure)
        except HarnessError as error:
            self._end_helpers()
            failure = Failure(phase=draft.current_phase, cause=Cause.HARNESS, detail=str(error))
            return draft.verdict(Status.INVALID, failure)
        return draft.verdict(Status.CORRECT)

    def _note_isolation(self, draft: Draft) -> None:
        """Write into the draft how well the candidate is kept apart.

        Raises:
            UsageError: less well than was asked for.
        """
        obstacle = self._nursery.obstacle
        if not obstacle:
            draft.isolation = LAYERS
        elif self.config.isolation == "required":
            raise UsageError(f"--isolation required, but no sandbox can be made here: {obstacle}. See `pkb doctor`.")
        elif self.config.isolation == "auto":
            draft.note(f"not isolated from this machine: {obstacle}")

    def _plan(self, problem: Problem, code: Judgeside, *, timed: bool) -> Schedule:
        """The schedule, once it is known that problem and machine can run it."""
        world_size = self.config.world_size
        problem.require(world_size, self.config.dtype)
        sharing = (1 if self.mode is DeviceMode.CUDA else world_size) * (1 + timed)
        free = free_bytes(self.mode)
        room = min(_MAX_TIMED_BYTES, free // (_TIMED_SHARE * sharing)) if timed else 0
        schedule = make_schedule(problem, code, self.config, timed_bytes=room)
        # The baseline is alive beside the candidate; it holds the timed draws only, so this errs to the safe side.
        needed = rank_bytes(problem, code, self.config, schedule) * sharing
        if needed > free:
            raise UsageError(
                f"{problem.id} at size {self.config.size} on {world_size} ranks needs about"
                f" {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free. Use a smaller --size or --world-size."
            )
        return schedule

    def _layout(self) -> Layout:
        world_size = self.config.world_size
        return Layout(self.mode, world_size, num_threads_per_rank(world_size), rank_memory_limit(self.mode, world_size))

    def _oracle_device(self) -> str:
        return "cpu" if self.mode is DeviceMode.CPU else "cuda:0"

    def _take_ranks(self) -> RankSet:
        """Ranks that no candidate has touched: those that were started ahead, or new ones."""
        ranks, self._spare = self._spare, None
        return ranks or RankSet(self._nursery, self._layout())

    def _load(self, draft: Draft, ranks: RankSet) -> None:
        """Build phase: import and compile the candidate."""
        with draft.phase(Phase.BUILD):
            builds = load_solution(
                ranks, draft.problem, draft.solution, draft.problem.num_arguments(), self.config.build_deadline_s
            )
        for build in builds:
            how = "from the cache" if build.cached else f"in {build.seconds:.2f} s"
            draft.note(f"built {build.name} for {build.arch} {how}")

    def _end_helpers(self) -> None:
        """End spare and baseline ranks, one of which may be what failed; new ones are started when needed."""
        helpers = (self._spare, self._baseline)
        self._spare = self._baseline = None
        for ranks in helpers:
            if ranks is not None:
                ranks.close()

    def _baseline_beside(self, truth: Truth) -> BaselineRanks:
        """Ranks that run the problem's reference, ready; and nothing else that is still starting."""
        if self._baseline is not None and self._baseline.problem != truth.problem:
            self._baseline.close()
            self._baseline = None
        if self._baseline is None:
            self._baseline = BaselineRanks(
                self._nursery, self._layout(), truth.problem, truth.code, self.config, truth.schedule
            )
        if self._spare is not None:
            self._spare.wait_ready()
        return self._baseline


def judge(
    problem: Problem | str | int,
    path: str | Path,
    *,
    config: JudgeConfig | None = None,
    listener: Listener = ignore,
    **settings: Any,
) -> Verdict:
    """Judge one solution; a bad candidate never raises, it gets a verdict that says why.

    Args:
        problem: the problem, or its id, number, or a unique prefix of its id.
        path: a Python file that defines `solution(...)`, or a folder with `solution.py`.
        config: how to judge.
        listener: told of every phase and step, for a progress line.
        settings: fields of `JudgeConfig` that replace those of `config`, such as `world_size=4`.

    Raises:
        UsageError: no such problem, file or size, or it cannot be run like this on this machine.
    """
    with Judge(_with(config, settings), listener=listener) as session:
        return session.judge(problem, path)


def time_baseline(
    problem: Problem | str | int,
    *,
    config: JudgeConfig | None = None,
    listener: Listener = ignore,
    **settings: Any,
) -> Verdict:
    """Check and time a problem's reference; arguments and errors as in `judge`."""
    with Judge(_with(config, settings), listener=listener) as session:
        return session.time_baseline(problem)


def _screen(draft: Draft) -> None:
    """Look at the source.

    Raises:
        Stop: it has a fault that needs no run to be seen.
    """
    with draft.phase(Phase.SCREEN):
        solution = draft.solution
        objection = screen(solution.source(), solution.path, draft.problem.num_arguments())
        if objection is not None:
            failure = Failure(phase=Phase.SCREEN, cause=objection.cause, detail=objection.detail, log=objection.log)
            raise Stop(objection.status, failure)


def _mode(config: JudgeConfig) -> DeviceMode:
    mode = resolve_mode(config.device, config.world_size)
    if mode is DeviceMode.SHARED_GPU and config.world_size > _MAX_SHARED_GPU_RANKS:
        raise UsageError(
            f"shared-gpu runs at most {_MAX_SHARED_GPU_RANKS} ranks, asked for {config.world_size}."
            " Use a smaller --world-size."
        )
    return mode


def _problem(problem: Problem | str | int) -> Problem:
    return problem if isinstance(problem, Problem) else get_problem(problem)


def _with(config: JudgeConfig | None, settings: dict[str, Any]) -> JudgeConfig:
    """The configuration with some fields replaced."""
    base = config or JudgeConfig()
    unknown = sorted(set(settings) - set(JudgeConfig.model_fields))
    if unknown:
        fields = ", ".join(JudgeConfig.model_fields)
        raise UsageError(f"unknown setting {unknown[0]!r}; JudgeConfig has {fields}.")
    return JudgeConfig.model_validate({**base.model_dump(), **settings})
