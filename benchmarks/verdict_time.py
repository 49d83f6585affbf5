"""How long the judge itself takes, as a user sees it: whole commands, the wall clock, the median of a few runs.

    python benchmarks/verdict_time.py            # the CPU part
    python benchmarks/verdict_time.py --gpu      # and, on a machine with a GPU, verdicts of CUDA solutions

Prints one line each: what, measured seconds, the most that it should take.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge

ROOT = Path(__file__).resolve().parents[1]
PKB = (sys.executable, "-m", "pkb.cli.main")
PORTABLE = "solutions/allreduce/portable"
RUNS = 5


def main() -> None:
    """Measure everything that this machine can run."""
    report("pkb --help", command_s("--help"), 0.3)
    report("pkb list", command_s("list"), 0.3)
    tiny = ("--problem", "allreduce", "--device", "cpu", "--size", "tiny", "--rounds", "0")
    report("CPU verdict, 2 ranks, 3 trials, size tiny, no timing, cold", command_s("judge", PORTABLE, *tiny), 8.0)
    first, second = in_session_s(JudgeConfig(device="cpu", size="tiny", rounds=0), PORTABLE)
    report("the same: first candidate of a session", first, 8.0)
    report("the same: next candidate of that session", second, 3.0)
    if "--gpu" in sys.argv:
        for folder in sorted(path.parent for path in ROOT.glob("solutions/*/*/kernel.cu")):
            solution = str(folder.relative_to(ROOT))
            # The first run builds; a verdict of a built solution is what is measured.
            first, second = in_session_s(JudgeConfig(size="base"), solution)
            report(f"GPU verdict, 2 ranks, tiny and base, {solution}", second, 25.0)


def report(what: str, seconds: float, most: float) -> None:
    """Print one line."""
    print(f"{seconds:7.2f} s  (at most {most:4.1f} s)  {what}", flush=True)


def command_s(*arguments: str) -> float:
    """Median wall time of a command."""
    return statistics.median(_run_s(arguments) for _ in range(RUNS))


def in_session_s(config: JudgeConfig, solution: str) -> tuple[float, float]:
    """Wall time of the first verdict of a session, its start included, and the median of the following ones."""
    problem = Path(solution).parts[1]
    begin = time.perf_counter()
    with Judge(config) as judge:
        judge.judge(problem, ROOT / solution, more=True)
        first = time.perf_counter() - begin
        following = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            judge.judge(problem, ROOT / solution, more=True)
            following.append(time.perf_counter() - begin)
    return first, statistics.median(following)


def _run_s(arguments: Sequence[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([*PKB, *arguments], cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
