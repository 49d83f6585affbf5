"""Results of solutions from verdict files alone: what was timed, what was only checked, on which machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pkb.records.jsonl import load
from pkb.records.verdict import Status, Timing, Verdict
from pkb.reporting import words
from pkb.reporting.files import markdown_table
from pkb.reporting.summary import Cell, Table


def results_markdown(paths: Sequence[str | Path]) -> str:
    """A page: for each machine, a table of timed verdicts, and one of those that only say what is correct.

    Of several verdicts on the same solution, world size, dtype and sizes, the last counts.

    Raises:
        UsageError: a path is missing or holds no verdicts.
    """
    verdicts = [verdict for path in paths for verdict in load(path)]
    latest = {_identity(verdict): verdict for verdict in sorted(verdicts, key=lambda v: v.created)}
    machines: dict[str, list[Verdict]] = {}
    for verdict in latest.values():
        machines.setdefault(_machine(verdict), []).append(verdict)
    sources = " ".join(str(path) for path in paths)
    intro = (
        f"# Results\n\nWritten by `pkb report {sources}` from verdicts. A time is that of the slowest rank,\n"
        "the median over rounds; % of speed of light is the least time that link, memory and arithmetic of the\n"
        "machine allow, over the time measured, with what bounds it.\n"
    )
    return "\n".join([intro, *(_section(name, machines[name]) for name in sorted(machines))])


def _section(machine: str, verdicts: Sequence[Verdict]) -> str:
    days = sorted({f"{verdict.created:%Y-%m-%d}" for verdict in verdicts})
    commits = sorted({verdict.fingerprint.commit[:9] for verdict in verdicts if verdict.fingerprint.commit})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [f"## {machine}", "", f"{len(verdicts)} verdicts of {span}"]
    lines[-1] += f", pkb at commit {', '.join(commits)}." if commits else "."
    timed = [verdict for verdict in verdicts if verdict.timings]
    checked = [verdict for verdict in verdicts if not verdict.timings]
    tables = [table for table in (_timed(timed), _checked(checked)) if table.rows]
    return "\n".join(lines) + "\n\n" + "\n".join(f"#{markdown_table(table)}" for table in tables)


def _timed(verdicts: Sequence[Verdict]) -> Table:
    heads = (
        "problem", "solution", "ranks", "dtype", "size", "baseline", "solution's time", "speedup (95 % interval)",
        "% of speed of light", "bound", "by library",
    )  # fmt: skip
    order = sorted(verdicts, key=lambda v: (v.problem, v.solution.name, v.world_size, v.dtype))
    rows = [_timed_row(verdict, timing) for verdict in order for timing in verdict.timings]
    return Table("Timed", heads, tuple(rows), num_names=2)


def _timed_row(verdict: Verdict, timing: Timing) -> tuple[Cell, ...]:
    speedup = words.times(timing.speedup)
    if timing.speedup_interval is not None:
        speedup += f" ({timing.speedup_interval.low:.2f} to {timing.speedup_interval.high:.2f})"
    if verdict.status is not Status.CORRECT:
        speedup = str(verdict.status)
    return _cells(
        verdict.problem,
        verdict.solution.name,
        verdict.world_size,
        verdict.dtype,
        timing.size,
        words.microseconds(timing.baseline_us),
        words.microseconds(timing.candidate_us),
        speedup,
        words.NONE if timing.sol_percent is None else f"{timing.sol_percent:.0f}",
        timing.sol_bound or words.NONE,
        {True: "yes", False: "no", None: words.NONE}[verdict.library],
    )


def _checked(verdicts: Sequence[Verdict]) -> Table:
    by_solution: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda v: (v.problem, v.solution.name)):
        by_solution.setdefault((verdict.problem, verdict.solution.name), []).append(verdict)
    rows = [
        _cells(
            problem,
            solution,
            f"{sum(v.status is Status.CORRECT for v in found)} of {len(found)}",
            _listed(v.world_size for v in found),
            _listed(v.dtype for v in found),
            _listed(trial.size for v in found for trial in v.trials),
            words.count(sum(trial.num_calls for v in found for trial in v.trials)),
            _listed(f"{v.status}: {v.failure.cause}" for v in found if v.failure is not None) or words.NONE,
        )
        for (problem, solution), found in by_solution.items()
    ]
    heads = ("problem", "solution", "correct", "ranks", "dtypes", "sizes", "calls checked", "failures")
    return Table("Checked, not timed", heads, tuple(rows), num_names=2)


def _identity(verdict: Verdict) -> tuple[object, ...]:
    sizes = {trial.size for trial in verdict.trials} | {timing.size for timing in verdict.timings}
    timed = tuple(timing.size for timing in verdict.timings)
    where = (_machine(verdict), verdict.world_size, verdict.dtype)
    return verdict.problem, verdict.solution.name, *where, frozenset(sizes), timed, verdict.build_only


def _machine(verdict: Verdict) -> str:
    """`1x NVIDIA H200, shared-gpu`: what has to be equal for two verdicts to stand in one table."""
    machine = verdict.fingerprint
    return f"{max(machine.num_devices, 1)}x {machine.device_name}, {verdict.device}"


def _listed(items: Iterable[object]) -> str:
    """Different items in order, with commas."""
    return ", ".join(map(str, sorted(set(items), key=lambda item: (len(str(item)), str(item)))))


def _cells(*texts: object) -> tuple[Cell, ...]:
    return tuple(Cell(str(text)) for text in texts)
