"""`pkb show`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pkb.judging.roofline import SpeedOfLight, speed_of_light
from pkb.launch.hardware import PROFILES
from pkb.problems._find import get_problem
from pkb.problems._spec import Cost, Dtype

if TYPE_CHECKING:
    from pkb.problems._footprint import Footprint


@click.command("show")
@click.argument("problem_id", metavar="ID")
@click.option(
    "--world-size",
    type=click.IntRange(1),
    help="Ranks that costs are for. Default: the fewest above one that the problem is judged on.",
)
@click.option("--dtype", type=click.Choice(["bf16", "fp32"]), help="Default: the first that the problem is judged in.")
@click.option(
    "--gpu",
    type=click.Choice(sorted(PROFILES), case_sensitive=False),
    default="H200",
    show_default=True,
    help="GPU that speed-of-light times are for.",
)
@click.option("--source", is_flag=True, help="Print reference.py, which is what a solution replaces, and nothing else.")
def command(problem_id: str, world_size: int | None, dtype: Dtype | None, gpu: str, source: bool) -> None:
    """Show a problem. ID is a number, a name, or a unique prefix of a name."""
    problem = get_problem(problem_id)
    if source:
        click.echo(problem.reference_path.read_text(encoding="utf-8"), nl=False)
        return
    dtype = dtype or problem.dtypes[0]
    world_size = world_size or min(w for w in problem.world_sizes if w > 1)
    problem.require(world_size, dtype)
    click.echo(f"{problem.number} {problem.id}  [{problem.group}, {problem.parallelism}]")
    click.echo(f"origin: {problem.origin}")
    click.echo(f"world sizes: {', '.join(map(str, problem.world_sizes))}")
    click.echo(f"dtypes: {', '.join(problem.dtypes)}")
    click.echo(f"arguments: {', '.join(problem.argument_names())}")
    click.echo()
    click.echo(problem.contract())
    click.echo()
    click.echo(
        f"sizes, on {world_size} ranks in {dtype}: memory of a rank's arguments, least work of a rank for one call,"
        f" and its speed-of-light time on {gpu} GPUs with what bounds it"
    )
    # Only here: what draws tensors imports torch, which takes longer than all the rest and is not needed for a source.
    footprint = importlib.import_module("pkb.problems._footprint").footprint
    code = problem.load()
    for name, size in problem.sizes.items():
        click.echo(f"  {name}: {_dimensions(size)}")
        memory = footprint(problem, code, name, world_size, dtype)
        cost = code.cost(size, world_size, dtype)
        click.echo(f"    {_needs(memory, cost, speed_of_light(cost, dtype, PROFILES[gpu]))}")


def _needs(memory: Footprint, cost: Cost, light: SpeedOfLight) -> str:
    about = "" if memory.is_exact else "about "
    return (
        f"memory {about}{_bytes(memory.num_bytes)}, link {_bytes(cost.link_bytes)}, HBM {_bytes(cost.hbm_bytes)},"
        f" {cost.flops / 1e9:.4g} GFLOP; {light.time_us:.4g} us ({light.bound})"
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
