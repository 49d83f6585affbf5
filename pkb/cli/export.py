"""`pkb export`."""

from __future__ import annotations

from pathlib import Path

import click

from pkb.reporting.export import Format, write
from pkb.reporting.sheet import read_sheet, run_folders


@click.command("export")
@click.argument("paths", metavar="RUN [RUN ...]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="parquet needs the extra `export`.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: turns.jsonl or turns.parquet in the current folder.",
)
def command(paths: tuple[Path, ...], form: Format, output: Path | None) -> None:
    """Write every reply of runs as a row for training: prompt, reply, code, verdict, reward.

    RUN is a folder that `pkb generate` wrote, or one that holds several. docs/reports.md describes the columns.
    """
    target = output or Path(f"turns.{form}")
    count = write([read_sheet(run) for path in paths for run in run_folders(path) or (path,)], target, form)
    click.echo(f"wrote {count} rows to {target}", err=True)
