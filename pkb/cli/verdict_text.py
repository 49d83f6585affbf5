"""A verdict in words for people."""

from __future__ import annotations

from collections.abc import Iterator

from pkb.records.verdict import DeviceMode, Failure, Timing, Verdict

_MAX_LOG_LINES = 30


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict in one line, then what supports it, indented."""
    yield f"{verdict.problem} <- {verdict.solution.name}: {verdict}"
    if verdict.failure is not None:
        yield from _failure(verdict.failure)
        if verdict.seed:
            yield f"  the same draws and delays again: --replay {verdict.seed}"
    for size in dict.fromkeys(trial.size for trial in verdict.trials):
        yield f"  {_trials(verdict, size)}"
    for timing in verdict.timings:
        yield f"  {_timing(timing, verdict.device)}"
    if verdict.solution_class is not None:
        by = f" by {', '.join(verdict.mechanisms)}" if verdict.mechanisms else ""
        yield f"  class {verdict.solution_class}{by}"
    for note in verdict.notes:
        yield f"  note: {note}"
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in verdict.phase_seconds.items() if seconds >= 0.05)
    if spent:
        yield f"  phases: {spent}"


def _trials(verdict: Verdict, size: str) -> str:
    """Number of passed trials at a size and their errors."""
    trials = [trial for trial in verdict.trials if trial.size == size]
    calls = sum(trial.num_calls for trial in trials)
    text = f"size {size}: {sum(t.passed for t in trials)} of {len(trials)} trials right ({calls} calls)"
    errors = [t.error for t in trials if t.error is not None]
    tolerances = [t.tolerance for t in trials if t.tolerance is not None]
    roundings = [t.rounding_error for t in trials if t.rounding_error is not None and not t.exact]
    if errors and tolerances:
        text += f", error {max(errors):.2g} of {max(tolerances):g} allowed"
        if roundings:
            text += f" (rounding alone {max(roundings):.2g})"
    return text


def _timing(timing: Timing, device: DeviceMode) -> str:
    clock = "CPU time " if device is DeviceMode.CPU else ""
    text = f"size {timing.size}: {clock}{timing.candidate_us:.1f} us"
    if timing.baseline_us is not None and timing.speedup is not None:
        text += f", baseline {timing.baseline_us:.1f} us, speedup {timing.speedup:.2f}"
    if timing.speedup_interval is not None:
        text += f" (95 % interval {timing.speedup_interval.low:.2f} to {timing.speedup_interval.high:.2f})"
    if timing.sol_percent is not None:
        text += f", {timing.sol_percent:.0f} % of speed of light ({timing.sol_bound})"
    return text


def _failure(failure: Failure) -> Iterator[str]:
    for state in failure.ranks:
        yield f"  rank {state.rank}: {state.state}"
        for frame in state.stack[:4]:
            yield f"      {frame}"
    log = failure.log.rstrip().splitlines()
    if len(log) > _MAX_LOG_LINES:
        yield f"  ({len(log) - _MAX_LOG_LINES} more lines of log with --json)"
    for line in log[-_MAX_LOG_LINES:]:
        yield f"  | {line}"
