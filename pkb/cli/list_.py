"""`pkb list`."""

from __future__ import annotations

import click

from pkb.problems._find import list_problems


@click.command("list")
@click.option("--group", help="Only problems of this group, e.g. collective.")
@click.option("--parallelism", help="Only problems with this word in their parallelism, e.g. tp.")
@click.option("--world-size", type=click.IntRange(1), help="Only problems that this many ranks can solve.")
def command(group: str | None, parallelism: str | None, world_size: int | None) -> None:
    """List the problems: number, id, group, parallelism, title."""
    problems = list_problems(group=group, parallelism=parallelism, world_size=world_size)
    id_width = max(len(problem.id) for problem in problems)
    group_width = max(len(problem.group) for problem in problems)
    parallelism_width = max(len(problem.parallelism) for problem in problems)
    for problem in problems:
        click.echo(
            f"{problem.number:3d}  {problem.id:{id_width}}  {problem.group:{group_width}}"
            f"  {problem.parallelism:{parallelism_width}}  {problem.title}"
        )
