"""`pkb baseline`."""

from __future__ import annotations

from typing import Any

import click

from pkb.cli.judge import exit_code, show
from pkb.cli.options import config_of, judging_options
from pkb.cli.progress import ProgressLine
from pkb.judging.judge import Judge
from pkb.problems._find import get_problem


@click.command("baseline")
@click.argument("problem_id", metavar="ID")
@judging_options
@click.option("--json", "as_json", is_flag=True, help="Print the verdict record as JSON.")
def command(problem_id: str, as_json: bool, **settings: Any) -> int:
    """Check and time a problem's own reference. ID is a number, a name, or a unique prefix of a name."""
    problem = get_problem(problem_id)
    with ProgressLine(problem.id) as progress, Judge(config_of(**settings), listener=progress) as judge:
        verdict = judge.time_baseline(problem)
    show(verdict, as_json=as_json)
    return exit_code(verdict)
