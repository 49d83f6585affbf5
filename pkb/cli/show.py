"""`pkb show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pkb.problems._find import get_problem


@click.command("show")
@click.argument("problem_id", metavar="ID")
@click.option("--world-size", type=click.IntRange(1), default=2, show_default=True, help="Ranks that costs are for.")
@click.option("--dtype", type=click.Choice(["bf16", "fp32"]), default="bf16", show_default=True)
@click.option("--source", is_flag=True, help="Print reference.py, which is what a solution replaces, and nothing else.")
def command(problem_id: str, world_size: int, dtype: Any, source: bool) -> None:
    """Show a problem. ID is a number, a name, or a unique prefix of a name."""
    problem = get_problem(problem_id)
    if source:
        click.echo(problem.reference_path.read_text(encoding="utf-8"), nl=False)
        return
    click.echo(f"{problem.number} {problem.id}  [{problem.group}, {problem.parallelism}]")
    click.echo(f"origin: {problem.origin}")
    click.echo(f"world sizes: {', '.join(map(str, problem.world_sizes))}")
    click.echo(f"arguments: {', '.join(problem.argument_names())}")
    click.echo()
    click.echo(problem.contract())
    click.echo()
    click.echo(f"sizes, with the least work of a rank for one call ({world_size} ranks, {dtype}):")
    cost_of = problem.load().cost
    for name, size in problem.sizes.items():
        cost = cost_of(size, world_size, dtype)
        click.echo(
            f"  {name:14} {_dimensions(size):44} link {_bytes(cost.link_bytes):>10}"
            f"  HBM {_bytes(cost.hbm_bytes):>10}  {cost.flops / 1e9:10.3g} GFLOP"
        )


def _dimensions(size: Mapping[str, Any]) -> str:
    words = [f"{name}={_value(value)}" for name, value in size.items() if name != "exact"]
    return " ".join(words) + (" (exact trials only)" if size.get("exact") else "")


def _value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _bytes(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
