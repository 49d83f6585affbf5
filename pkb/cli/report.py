"""`pkb report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pkb.records.errors import UsageError
from pkb.reporting import files, summary
from pkb.reporting.results_table import results_markdown
from pkb.reporting.sheet import read_sheet, run_folders


@click.command("report")
@click.argument("paths", metavar="RUN [RUN ...]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="report.html for runs (default: report.html in the first run's folder); a .md file for verdicts (default:"
    " stdout).",
)
def command(paths: tuple[Path, ...], output: Path | None) -> None:
    """Score runs of models and compare them: one HTML page, with Markdown and CSV beside it.

    RUN is a folder that `pkb generate` wrote, or one that holds several. Files or folders of verdicts (.jsonl) give a
    table of results instead.
    """
    found = {path: run_folders(path) for path in paths}
    runs = [run for folders in found.values() for run in folders]
    others = [path for path, folders in found.items() if not folders]
    if runs and others:
        raise UsageError(f"{others[0]}: no run, but {runs[0]} is one. Give runs only, or files of verdicts only.")
    if runs:
        _report(runs, output or paths[0] / "report.html")
    else:
        _results(paths, output)


def _report(runs: Sequence[Path], output: Path) -> None:
    sheets = [read_sheet(run) for run in runs]
    written = files.write(sheets, output)
    click.echo(files.markdown_table(summary.headline(sheets)), nl=False)
    click.echo("wrote " + ", ".join(map(str, written)), err=True)


def _results(paths: Sequence[Path], output: Path | None) -> None:
    text = results_markdown(paths)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.suffix != ".md":
        raise UsageError(f"{output}: expected a name that ends in .md; verdicts give a Markdown table.")
    files.write_text(output, text)
    click.echo(f"wrote {output}", err=True)
