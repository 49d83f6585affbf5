"""What will be called, in which order, on which draws and with which skew, derived from the run's secret."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pkb.judging.config import JudgeConfig
from pkb.launch.plan import CallPlan, DrawPlan, Prepare, Redraw, RunCalls
from pkb.problems._draw import derive_seeds
from pkb.problems._footprint import footprint
from pkb.problems._spec import Judgeside, Problem

CALLS_OF_A_SIZE = 3
"""Calls of each size in a trial, all on different inputs: two in a row, and one after a change of shape."""
_HEAVY_BYTES = 256 * 1024**2
"""Above this many bytes of traffic a call, one trial is made at a size instead of several."""
_MAX_TIMED_DRAWS = 1024
_MIN_TIMED_DRAWS = 2
_MIN_SKEW_US = 2000
_MAX_SKEW_US = 8000
"""Longer than a fast rank needs to return from a small call and to begin the next one."""


@dataclass(frozen=True)
class DrawSpec:
    """One draw of all ranks' arguments."""

    size: str
    index: int
    exact: bool


@dataclass(frozen=True)
class TrialPlan:
    """Calls that run back to back, as positions in the schedule's draws."""

    index: int
    exact: bool
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Everything that will be drawn and called."""

    draws: tuple[DrawSpec, ...]
    trials: tuple[TrialPlan, ...]
    timed: dict[str, int]
    """For each timed size the most calls of a block: each gets arguments that were drawn for it alone."""
    light_trials: tuple[str, ...]
    """Sizes so large that they were given one trial only."""

    def only_timed(self) -> Schedule:
        """The part that a baseline needs."""
        return Schedule((), (), self.timed, ())

    def prepare(self, problem: Problem, config: JudgeConfig, secret: bytes, rank: int, max_bytes: int) -> Prepare:
        """The command that makes a rank draw its arguments; it holds seeds of this rank and shared ones only."""
        plans = []
        for draw in self.draws:
            seeds = derive_seeds(secret, problem=problem.id, size=draw.size, index=draw.index, rank=rank)
            plans.append(
                DrawPlan(
                    size=draw.size,
                    index=draw.index,
                    exact=draw.exact,
                    own_seed=seeds.own,
                    shared_seed=seeds.shared,
                )
            )
        return Prepare(
            problem=str(problem.folder),
            files={file.name: file.read_text(encoding="utf-8") for file in sorted(problem.folder.glob("*.py"))},
            dtype=config.dtype,
            draws=tuple(plans),
            max_result_bytes=max_bytes,
        )


def make_schedule(problem: Problem, code: Judgeside, config: JudgeConfig, *, timed_bytes: int) -> Schedule:
    """Lay out trials and timing for a problem.

    Each trial calls its sizes in runs of two and then once more, in an order of its own: two calls in a row meet
    the same buffers with new contents, and a change of shape in between meets state that is keyed wrongly.

    Args:
        problem: its sizes.
        code: its costs.
        config: trials, size, world size and dtype.
        timed_bytes: memory of a rank that the arguments of a timed block may take; 0 for no timing.
    """
    main = problem.sizes_named(config.size)
    names = tuple(dict.fromkeys((*problem.sizes_named("tiny"), *main)))
    heavy = {n for n in names if traffic(problem, code, config, n) > _HEAVY_BYTES}
    draws: list[DrawSpec] = []
    trials: list[TrialPlan] = []
    order = random.Random(f"{problem.id} {config.size}")
    for index in range(config.trials + problem.exact_trial):
        exact = index == config.trials
        used = [
            n for n in names if (exact or not problem.sizes[n].get("exact")) and (index == 0 or exact or n not in heavy)
        ]
        calls: list[int] = []
        for name in _order(used, CALLS_OF_A_SIZE, order):
            calls.append(len(draws))
            draws.append(DrawSpec(name, index=len(draws), exact=exact))
        trials.append(TrialPlan(index, exact, tuple(calls)))
    blocks = {}
    for name in [n for n in main if timed_bytes and not problem.sizes[n].get("exact")]:
        fitting = int(timed_bytes / _draw_bytes(problem, code, config, name))
        blocks[name] = max(_MIN_TIMED_DRAWS, min(_MAX_TIMED_DRAWS, fitting))
    return Schedule(tuple(draws), tuple(trials), blocks, tuple(sorted(heavy)))


def timed_secret(secret: bytes, size: str) -> bytes:
    """What timed draws of a size are derived from: another secret, so that none repeats a draw of a trial."""
    return hashlib.blake2b(b"timed calls of " + size.encode(), key=secret, digest_size=32).digest()


def redraws(problem: Problem, secret: bytes, size: str, first_index: int, count: int, world_size: int) -> list[Redraw]:
    """For each rank the command to draw the arguments of a block: its own seeds and shared ones only."""
    indices = range(first_index, first_index + count)
    commands = []
    for rank in range(world_size):
        seeds = [derive_seeds(secret, problem=problem.id, size=size, index=i, rank=rank) for i in indices]
        commands.append(
            Redraw(
                size=size,
                first_index=first_index,
                own_seeds=tuple(s.own for s in seeds),
                shared_seeds=tuple(s.shared for s in seeds),
            )
        )
    return commands


def skewed_calls(trial: TrialPlan, sizes: Sequence[str], rank: int, world_size: int, secret: bytes) -> RunCalls:
    """A trial's calls for one rank, with random delays that hit another rank at every call.

    A call that is followed by one of the same size has a slow reader: one rank waits inside the call, behind a
    barrier, while its peers run ahead, so a buffer without a leave barrier is overwritten under its eyes; the
    next call then starts without delay on any rank. Every other call has a slow writer: one rank starts late,
    so peers that do not wait for it read old data.

    Args:
        trial: its calls.
        sizes: the size of each call.
        rank: whose delays are wanted.
        world_size: number of ranks.
        secret: the run's secret.
    """
    chance = random.Random(secret + f"skew {trial.index}".encode())
    plans = []
    follows_slow_reader = False
    for number, draw in enumerate(trial.calls):
        # The same draws on every rank, whoever they hit.
        victim, late_reader = chance.randrange(world_size), chance.randrange(world_size)
        delay, late = chance.randint(_MIN_SKEW_US, _MAX_SKEW_US), chance.randrange(_MIN_SKEW_US)
        on_device = chance.random() < 0.5
        slow_reader = number + 1 < len(sizes) and sizes[number] == sizes[number + 1]
        slow_writer = not slow_reader and not follows_slow_reader
        # Most solutions read behind their first barrier; in every third trial the second is tried.
        behind = (0, delay) if trial.index % 3 == 1 else (delay,)
        plans.append(
            CallPlan(
                draw=draw,
                host_delay_us=delay if slow_writer and rank == victim and not on_device else 0,
                device_delay_us=delay if slow_writer and rank == victim and on_device else 0,
                late_read_us=late if slow_writer and rank == late_reader else 0,
                barrier_delays_us=behind if slow_reader and rank == victim else (),
            )
        )
        follows_slow_reader = slow_reader
    return RunCalls(calls=tuple(plans))


def rank_bytes(problem: Problem, code: Judgeside, config: JudgeConfig, schedule: Schedule) -> int:
    """About how much memory a rank needs: every draw, the live arguments, and the results of one trial.

    A call's traffic bounds the bytes of its results and of the arguments that are read in full.
    """
    sizes = {d.size for d in schedule.draws} | set(schedule.timed)
    per_draw = {n: _draw_bytes(problem, code, config, n) for n in sizes}
    arguments = sum(per_draw[d.size] for d in schedule.draws)
    results = max(sum(per_draw[schedule.draws[c].size] for c in t.calls) for t in schedule.trials)
    block = max((per_draw[n] * count for n, count in schedule.timed.items()), default=0.0)
    return int(arguments + block + results + 2 * sum(per_draw.values()))


def max_result_bytes(problem: Problem, code: Judgeside, config: JudgeConfig, schedule: Schedule) -> int:
    """A bound that no right result reaches, for any size of the schedule."""
    sizes = {d.size for d in schedule.draws} | set(schedule.timed)
    largest = max(traffic(problem, code, config, n) for n in sizes)
    return int(4 * largest) + 64 * 1024**2


def _draw_bytes(problem: Problem, code: Judgeside, config: JudgeConfig, name: str) -> float:
    num_bytes = traffic(problem, code, config, name)
    if name.startswith("tiny"):
        return num_bytes
    return max(num_bytes, footprint(problem, code, name, config.world_size, config.dtype).num_bytes)


def traffic(problem: Problem, code: Judgeside, config: JudgeConfig, name: str) -> float:
    """Bytes that one call moves at least, link and memory."""
    cost = code.cost(problem.sizes[name], config.world_size, config.dtype)
    return max(1.0, cost.hbm_bytes + cost.link_bytes)


def _order(names: Sequence[str], calls: int, order: random.Random) -> list[str]:
    """Each name `calls` times: runs of two in random order, then the rest in random order."""
    runs = order.sample(names, len(names))
    rest = [name for name in names for _ in range(calls - 2)]
    order.shuffle(rest)
    return [name for name in runs for _ in range(2)] + rest
