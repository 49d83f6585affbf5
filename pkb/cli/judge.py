"""`pkb judge`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from pkb.cli.main import EXIT_HARNESS, EXIT_NOT_CORRECT
from pkb.cli.options import config_of, judging_options
from pkb.cli.progress import ProgressLine
from pkb.cli.verdict_text import lines
from pkb.judging.judge import Judge
from pkb.problems._find import get_problem
from pkb.records.solution import Solution
from pkb.records.verdict import Status, Verdict


def _checked_seed(context: click.Context, option: click.Parameter, value: str) -> str:
    if value and not re.fullmatch("[0-9a-f]{64}", value):
        raise click.BadParameter(f"expected the 64 hex digits that a verdict shows as its seed, got {value!r}.")
    return value


@click.command("judge")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--problem", "problem_id", required=True, metavar="ID", help="Number, name, or a unique prefix.")
@judging_options
@click.option(
    "--replay",
    "seed",
    default="",
    callback=_checked_seed,
    metavar="SEED",
    help="Seed of an earlier verdict: the same draws, delays and order of calls again.",
)
@click.option("--build-only", is_flag=True, help="Only screen and compile; without a GPU for sm_90a.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict records, one JSON object a line.")
def command(files: tuple[Path, ...], problem_id: str, build_only: bool, as_json: bool, **settings: Any) -> int:
    """Judge solutions: Python files that define solution(...), or folders with solution.py."""
    problem = get_problem(problem_id)
    for file in files:
        Solution.read(file)
    worst = 0
    with ProgressLine(problem.id) as progress, Judge(config_of(**settings), listener=progress) as judge:
        for number, file in enumerate(files):
            progress.name(f"{problem.id} <- {file}")
            if build_only:
                verdict = judge.build(problem, file)
            else:
                verdict = judge.judge(problem, file, more=number + 1 < len(files))
            show(verdict, as_json=as_json)
            worst = max(worst, exit_code(verdict))
    return worst


def show(verdict: Verdict, *, as_json: bool) -> None:
    """Print a verdict to stdout."""
    if as_json:
        click.echo(verdict.model_dump_json())
    else:
        for line in lines(verdict):
            click.echo(line)


def exit_code(verdict: Verdict) -> int:
    """0 correct, 1 not correct, 3 our fault."""
    if verdict.status is Status.CORRECT:
        return 0
    return EXIT_HARNESS if verdict.status is Status.INVALID else EXIT_NOT_CORRECT
