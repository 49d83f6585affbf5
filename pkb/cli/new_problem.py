"""`pkb new-problem`."""

from __future__ import annotations

import click

from pkb.problems._find import list_problems
from pkb.problems._scaffold import write_scaffold
from pkb.problems._spec import FOLDER


@click.command("new-problem")
@click.argument("name", metavar="NAME")
def command(name: str) -> None:
    """Make the two files of a new problem, in the package that this command runs from."""
    number = max(problem.number for problem in list_problems()) + 1
    folder = write_scaffold(name, number, FOLDER)
    click.echo(f"{folder / 'reference.py'}\n{folder / 'problem.py'}")
    click.echo(f"Next: `pkb check-problem {name}` says what to write; docs/add-a-problem.md how.", err=True)
