"""Judge every solution under solutions/, or the reference of every problem, and append the verdicts to a file.

    python scripts/judge_all.py solutions --device shared-gpu --world-sizes 2,4 --out results/h200x1/shared-gpu.jsonl
    python scripts/judge_all.py references --device shared-gpu --world-sizes 2 --out results/h200x1/references.jsonl

What a problem does not allow (a world size, a dtype) is left out; what does not fit into memory is said and left out.
Exit code 0 when all are correct, 1 when one is not.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import click

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.problems._find import get_problem, list_problems
from pkb.problems._spec import Problem
from pkb.records.errors import UsageError
from pkb.records.verdict import Status

ROOT = Path(__file__).resolve().parents[1]


@click.command()
@click.argument("what", type=click.Choice(["solutions", "references"]))
@click.option("--device", default="auto", show_default=True)
@click.option("--world-sizes", default="2,4", show_default=True)
@click.option("--dtypes", default="bf16,fp32", show_default=True)
@click.option("--sizes", default="base", show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--only", default="", help="Part of `problem/name` that a solution must have.")
@click.option("--deadline", default=60.0, show_default=True, help="Seconds that a trial or a timed block may take.")
@click.option("--budget", default=float("inf"), help="Seconds after which no further verdict is begun.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(what: str, world_sizes: str, dtypes: str, sizes: str, budget: float, out: Path, **options: object) -> None:
    """Judge all in every combination of world size, dtype and size."""
    begin, num_failed, only = time.monotonic(), 0, str(options["only"])
    pairs = [(problem, path) for problem, path in _pairs(what) if only in f"{problem.id}/{path.name}"]
    for world_size, dtype, size in itertools.product(
        map(int, world_sizes.split(",")), dtypes.split(","), sizes.split(",")
    ):
        allowed = [(p, f) for p, f in pairs if world_size in p.world_sizes and dtype in p.dtypes and size in p.sizes]
        settings = {
            "device": options["device"], "world_size": world_size, "dtype": dtype, "size": size,
            "rounds": options["rounds"], "deadline_s": options["deadline"],
        }  # fmt: skip
        with Judge(JudgeConfig.model_validate(settings)) as judge:
            for problem, path in allowed:
                if time.monotonic() - begin > budget:
                    print(f"no time left for {problem.id} and what follows", flush=True)
                    break
                num_failed += _judge(judge, problem, path, out, more=path is not allowed[-1][1])
    sys.exit(1 if num_failed else 0)


def _pairs(what: str) -> list[tuple[Problem, Path]]:
    if what == "references":
        return [(problem, problem.reference_path) for problem in list_problems()]
    folders = [file.parent for file in sorted(ROOT.glob("solutions/*/*/solution.py"))]
    return [(get_problem(folder.parent.name), folder) for folder in folders]


def _judge(judge: Judge, problem: Problem, path: Path, out: Path, *, more: bool) -> bool:
    """Judge one and save the verdict; returns whether it is not correct."""
    try:
        if path == problem.reference_path:
            verdict = judge.time_baseline(problem, more=more)
        else:
            verdict = judge.judge(problem, path, more=more)
    except UsageError as error:
        print(f"{problem.id}: left out: {error}", flush=True)
        return False
    verdict.save(out)
    spent = sum(verdict.phase_seconds.values())
    print(f"{problem.id} {judge.config.size} {spent:.1f} s: {verdict}", flush=True)
    return verdict.status is not Status.CORRECT


if __name__ == "__main__":
    main()
