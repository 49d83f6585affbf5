"""The outcome of judging one solution on one problem, as a record that cannot contradict itself."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pkb.records.base import Record
from pkb.records.machine import Fingerprint
from pkb.records.solution import Solution


class Status(StrEnum):
    """What became of a candidate."""

    CORRECT = "correct"
    WRONG = "wrong"
    MUTATED_INPUT = "mutated_input"
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"
    HUNG = "hung"
    REFUSED = "refused"
    INVALID = "invalid"
    """The judge's own fault: judged again, never scored."""


class Phase(StrEnum):
    """A step of judging; each has a deadline of its own."""

    SCREEN = "screen"
    BUILD = "build"
    CHECK = "check"
    TIME = "time"
    AUDIT = "audit"
    EXPLAIN = "explain"


class Cause(StrEnum):
    """The most plausible reason of a failure, as a word that programs can act on."""

    # build_failed
    SYNTAX = "syntax"
    NO_SOLUTION = "no_solution"
    ARITY = "arity"
    COMPILE = "compile"
    IMPORT = "import"
    # refused
    FORBIDDEN = "forbidden"
    TOO_FAST = "too_fast"
    CLOCKS_DISAGREE = "clocks_disagree"
    # crashed
    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    # hung
    DEADLOCK = "deadlock"
    # mutated_input
    MUTATED = "mutated"
    # wrong
    CONTAINER = "container"
    DTYPE = "dtype"
    SHAPE = "shape"
    UNWRITTEN = "unwritten"
    NONFINITE = "nonfinite"
    ZEROS = "zeros"
    MISSING_RANK = "missing_rank"
    DOUBLED_RANK = "doubled_rank"
    OWN_DATA_ONLY = "own_data_only"
    STALE = "stale"
    OVERWRITTEN = "overwritten"
    PERMUTED_RANKS = "permuted_ranks"
    SHARDING_AXIS = "sharding_axis"
    REDUCTION_OP = "reduction_op"
    SCALED = "scaled"
    RANKS_DIFFER = "ranks_differ"
    RACE = "race"
    PRECISION = "precision"
    NEAR_MISS = "near_miss"
    UNKNOWN = "unknown"
    # invalid
    HARNESS = "harness"


CAUSES_OF: dict[Status, frozenset[Cause]] = {
    Status.BUILD_FAILED: frozenset(
        {Cause.SYNTAX, Cause.NO_SOLUTION, Cause.ARITY, Cause.COMPILE, Cause.IMPORT, Cause.EXIT,
         Cause.SIGNAL, Cause.OUT_OF_MEMORY, Cause.DEADLOCK}
    ),
    Status.REFUSED: frozenset(
        {Cause.FORBIDDEN, Cause.TOO_FAST, Cause.CLOCKS_DISAGREE}
    ),
    Status.CRASHED: frozenset({Cause.EXCEPTION, Cause.EXIT, Cause.SIGNAL, Cause.OUT_OF_MEMORY}),
    Status.HUNG: frozenset({Cause.DEADLOCK}),
    Status.MUTATED_INPUT: frozenset({Cause.MUTATED}),
    Status.WRONG: frozenset(
        {Cause.CONTAINER, Cause.DTYPE, Cause.SHAPE, Cause.UNWRITTEN, Cause.NONFINITE, Cause.ZEROS,
         Cause.MISSING_RANK, Cause.DOUBLED_RANK, Cause.OWN_DATA_ONLY, Cause.STALE, Cause.OVERWRITTEN,
         Cause.PERMUTED_RANKS, Cause.SHARDING_AXIS, Cause.REDUCTION_OP, Cause.SCALED,
         Cause.RANKS_DIFFER, Cause.RACE, Cause.PRECISION, Cause.NEAR_MISS, Cause.UNKNOWN}
    ),
    Status.INVALID: frozenset({Cause.HARNESS}),
}  # fmt: skip
"""Which causes a status may name; `correct` has none."""


class DeviceMode(StrEnum):
    """How ranks are laid on devices."""

    CUDA = "cuda"
    SHARED_GPU = "shared-gpu"
    CPU = "cpu"


class SolutionClass(StrEnum):
    """Whose work a solution is, by what one profiled call of it shows; docs/method.md has the rule."""

    CUSTOM = "custom"
    HYBRID = "hybrid"
    LIBRARY = "library"


class Mismatch(Record):
    """Where an output first differs from what was expected."""

    rank: int
    """Rank that returned the output."""
    output: str
    """Which output: `result`, or a path into it such as `result[1]`."""
    index: tuple[int, ...]
    """First wrong element in row-major order; empty for a scalar."""
    got: str
    """Value found there."""
    expected: str
    """Value expected there."""
    wrong_elems: int
    """How many elements are outside the bound on single elements."""
    total_elems: int
    """How many elements the output has."""


class RankState(Record):
    """Where a rank was when the judge ended the run."""

    rank: int
    """Number of the rank."""
    state: str
    """`inside call 3`, `returned from call 3`, `waiting for the device after call 3`, `exited with code 1`, ..."""
    stack: tuple[str, ...] = ()
    """Innermost Python frames first, `file:line function`; empty when the process was gone."""


class Failure(Record):
    """Why a candidate is not correct."""

    phase: Phase
    """Where judging ended."""
    cause: Cause
    """The most plausible reason, as one word."""
    detail: str
    """One or a few sentences that a model or an engineer can act on."""
    mismatch: Mismatch | None = None
    """For a wrong result: its first wrong element."""
    ranks: tuple[RankState, ...] = ()
    """For crashes and hangs: the state of every rank."""
    log: str = ""
    """Compiler lines, a traceback, or the end of what the ranks printed."""


class Trial(Record):
    """One correctness draw with a fresh secret seed: several back-to-back calls on different inputs."""

    size: str
    """Name of the size."""
    index: int = Field(ge=0)
    """Number of the trial, from 0."""
    exact: bool
    """True when inputs were small integers and every bit had to be right."""
    num_calls: int = Field(ge=1)
    """Calls at this size."""
    error: float | None = None
    """Largest relative error over calls, ranks and outputs; None when an output could not be compared."""
    tolerance: float | None = None
    """Largest error that passes; None for an exact comparison."""
    rounding_error: float | None = None
    """Relative error of the oracle rounded to the output's dtype: what a perfect solution has."""
    passed: bool
    """Every result of every rank was right."""


class Interval(Record):
    """A 95 % interval."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if self.low > self.high:
            raise ValueError(f"interval is reversed: {self.low} > {self.high}")
        return self


class Timing(Record):
    """Times at one size. A time is that of the slowest rank; a median is over rounds."""

    size: str
    """Name of the size."""
    candidate_us: float = Field(gt=0)
    """Median time of an iteration, microseconds."""
    baseline_us: float | None = Field(default=None, gt=0)
    """The same for the reference; None where it was not timed."""
    speedup: float | None = Field(default=None, gt=0)
    """baseline_us / candidate_us."""
    speedup_interval: Interval | None = None
    """95 % bootstrap interval over rounds."""
    candidate_samples_us: tuple[float, ...] = ()
    """Time of an iteration in each round, in order."""
    baseline_samples_us: tuple[float, ...] = ()
    """The same for the baseline."""
    iterations: int = Field(ge=1)
    """Candidate iterations a round."""
    parent_us: float | None = Field(default=None, gt=0)
    """The same by the judge's own clock, from the common start to the last rank's answer."""
    sol_us: float | None = Field(default=None, gt=0)
    """Speed-of-light time by the roofline; None without a hardware profile."""
    sol_bound: Literal["link", "hbm", "arithmetic", "latency"] | None = None
    """Which limit sets sol_us."""

    @property
    def sol_percent(self) -> float | None:
        """Speed-of-light time / candidate time, in percent."""
        return None if self.sol_us is None else 100.0 * self.sol_us / self.candidate_us

    @model_validator(mode="after")
    def _consistent(self) -> Timing:
        if self.speedup is not None and self.baseline_us is None:
            raise ValueError("a speedup needs a baseline time")
        if self.speedup_interval is not None and self.speedup is None:
            raise ValueError("an interval needs a speedup")
        return self


class Verdict(Record):
    """Outcome of judging one solution on one problem."""

    schema_version: Literal[1] = 1
    """Changes when a field changes its meaning."""
    problem: str
    """Id of the problem: its folder name."""
    problem_sha256: str
    """Hash over the problem's two files."""
    solution: Solution
    """What was judged."""
    status: Status
    """What became of it."""
    failure: Failure | None = None
    """Set exactly when the status is not `correct`."""
    device: DeviceMode
    """How ranks were laid on devices."""
    world_size: int = Field(ge=1)
    """Number of ranks."""
    dtype: Literal["bf16", "fp32"]
    """Working dtype."""
    trials: tuple[Trial, ...] = ()
    """Correctness, one record for each trial and size."""
    timings: tuple[Timing, ...] = ()
    """Times, one record for each timed size."""
    build_only: bool = False
    """True when only the build was asked for: `correct` then means that it builds."""
    solution_class: SolutionClass | None = None
    """Whose work it is: `custom`, `hybrid` or `library`; None when that was not observed."""
    library: bool | None = None
    """True when the solution communicates through library collectives; None when that was not observed."""
    mechanisms: tuple[str, ...] = ()
    """Means of moving data that were seen: `library collective`, `symmetric memory`, `copy engine`, ..."""
    notes: tuple[str, ...] = ()
    """What a reader has to know, such as a phase that this mode cannot run."""
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time of each phase, seconds."""
    isolation: tuple[str, ...] = ()
    """What the sandbox separated candidates from: `files`, `processes`, `network`, `ipc`; empty without one."""
    seed: str = ""
    """Secret of this run, 64 hex digits, fresh for each: `--replay` makes the same draws and delays from it."""
    config_sha256: str = ""
    """Hash over the judge's configuration."""
    fingerprint: Fingerprint
    """Machine and software."""
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """When the verdict was reached."""

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if (self.status is Status.CORRECT) != (self.failure is None):
            raise ValueError(f"status {self.status} and failure {self.failure!r} contradict each other")
        if self.failure is not None and self.failure.cause not in CAUSES_OF[self.status]:
            raise ValueError(f"status {self.status} cannot have cause {self.failure.cause}")
        if self.status is not Status.CORRECT and any(t.speedup is not None for t in self.timings):
            raise ValueError(f"a speedup on a verdict that is {self.status}")
        if self.device is DeviceMode.SHARED_GPU and any(t.speedup is not None for t in self.timings):
            raise ValueError("shared-gpu never gives a speedup")
        if self.solution_class is SolutionClass.CUSTOM and self.library:
            raise ValueError("a solution that calls library collectives cannot be of class custom")
        all_passed = bool(self.trials) and all(t.passed for t in self.trials)
        if self.status is Status.CORRECT and not self.build_only and not all_passed:
            raise ValueError("correct needs at least one trial, and every trial passed")
        return self

    @property
    def is_scored(self) -> bool:
        """It says something about the solution: the judge did not fail, and did more than build what builds."""
        return self.status is not Status.INVALID and not (self.build_only and self.status is Status.CORRECT)

    @property
    def solved(self) -> bool:
        """Correct, judged beyond the build, and the communication done by the solution itself."""
        own = self.solution_class in (SolutionClass.CUSTOM, SolutionClass.HYBRID) and not self.library
        return self.status is Status.CORRECT and not self.build_only and own

    def __str__(self) -> str:
        """One line: status, what was measured, on what."""
        if self.build_only and self.status is Status.CORRECT:
            return "builds"
        where = f"({self.world_size} ranks, {self.device}, {self.dtype})"
        if self.failure is not None:
            return f"{self.status} [{self.failure.cause}] {where}: {self.failure.detail}"
        parts = [str(self.status)]
        if self.library:
            parts.append("by library collectives")
        if self.timings:
            parts += self._timing_words(self.timings[-1])
            where = f"({self.world_size} ranks, {self.fingerprint.device_name}, size {self.timings[-1].size})"
        return ", ".join(parts) + " " + where

    def _timing_words(self, timing: Timing) -> list[str]:
        words = []
        if timing.speedup is not None:
            baseline = "gloo (CPU times)" if self.device is DeviceMode.CPU else "NCCL"
            words.append(f"{timing.speedup:.2f}x the {baseline} baseline")
        else:
            words.append(f"{timing.candidate_us:.1f} us")
        if timing.sol_percent is not None:
            words.append(f"{timing.sol_percent:.0f} % of speed of light")
        return words

    def save(self, path: str | Path) -> None:
        """Append this verdict to a JSON Lines file, making its folder if needed."""
        from pkb.records.jsonl import append

        append(path, self)
