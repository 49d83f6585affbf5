"""A report as files: HTML, and beside it Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pkb.records.errors import UsageError
from pkb.reporting import page
from pkb.reporting.failures import FAMILY_OF, Kind
from pkb.reporting.scores import Column, Result, result_of
from pkb.reporting.sheet import Sheet, Tried
from pkb.reporting.summary import Summary, Table, summarize

CSV_FIELDS = (
    "run", "model", "mode", "backend", "hardware", "number", "problem", "group", "parallelism", "attempt", "turns",
    "kind", "family", "strict", "lenient", "speedup", "time_us", "baseline_us", "sol_percent", "size", "device",
    "world_size", "input_tokens", "output_tokens", "cost_usd",
)  # fmt: skip


def write(sheets: Sequence[Sheet], path: str | Path) -> tuple[Path, ...]:
    """Write PATH and, with the same stem, `.md` and `.csv`; returns all three.

    Raises:
        UsageError: the name does not end in `.html`, two runs share a name, or a file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".html":
        raise UsageError(f"{target}: expected a name that ends in .html; Markdown and CSV are written beside it.")
    names = [sheet.run.name for sheet in sheets]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two runs are named {twice!r}. Give each run once.")
    tables = summarize(sheets)
    contents = {".html": page.render(sheets, tables), ".md": markdown(sheets, tables), ".csv": csv_text(sheets)}
    for suffix, text in contents.items():
        write_text(target.with_suffix(suffix), text)
    return tuple(target.with_suffix(suffix) for suffix in contents)


def write_text(path: Path, text: str) -> None:
    """Write a file; parent folders are made.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}). Give a writable path.") from error


def markdown(sheets: Sequence[Sheet], tables: Summary) -> str:
    """All tables of the report."""
    compared = [tables.comparison] if tables.comparison is not None else []
    every = [tables.headline, *compared, tables.failures, *tables.splits]
    about = "\n".join(f"- {_about(sheet)}" for sheet in sheets)
    return f"# ParallelKernelBench report\n\n{about}\n\n" + "\n".join(map(markdown_table, every))


def markdown_table(table: Table) -> str:
    """One table under its title."""
    rows = [table.heads, tuple("---" for _ in table.heads), *(tuple(map(str, row)) for row in table.rows)]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return f"## {table.title}\n\n{body}\n"


def csv_text(sheets: Sequence[Sheet]) -> str:
    """One line for each attempt; fields that are not known are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for sheet in sheets:
        problems = {problem.id: problem for problem in sheet.run.problems}
        for tried in sheet.all:
            problem = problems[tried.attempt.problem]
            facts = {"number": problem.number, "group": problem.group, "parallelism": problem.parallelism}
            writer.writerow({**_row(tried), **facts, "run": sheet.run.name})
    return out.getvalue()


def _row(tried: Tried) -> dict[str, object]:
    attempt, usage = tried.attempt, tried.attempt.usage
    verdict = tried.turn.verdict if tried.turn is not None else None
    timing = verdict.timings[-1] if verdict is not None and verdict.timings else None
    return {
        "model": attempt.model,
        "mode": attempt.mode,
        "backend": attempt.backend,
        "hardware": attempt.hardware,
        "problem": attempt.problem,
        "attempt": attempt.index,
        "turns": len(attempt.turns),
        "kind": tried.kind,
        "family": FAMILY_OF[tried.kind],
        "strict": _flag(result_of(attempt, Column.STRICT)),
        "lenient": _flag(result_of(attempt, Column.LENIENT)),
        "speedup": timing.speedup if timing is not None else None,
        "time_us": timing.candidate_us if timing is not None else None,
        "baseline_us": timing.baseline_us if timing is not None else None,
        "sol_percent": timing.sol_percent if timing is not None else None,
        "size": timing.size if timing is not None else None,
        "device": verdict.device if verdict is not None else None,
        "world_size": verdict.world_size if verdict is not None else None,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": usage.cost_usd,
    }


def _flag(result: Result | None) -> int | None:
    """1 correct, 0 not, empty if it is not scored."""
    return None if result is None else int(result.correct)


def _about(sheet: Sheet) -> str:
    run, scored = sheet.run, sum(tried.kind is not Kind.NOT_SCORED for tried in sheet.all)
    text = (
        f"`{run.name}`: {run.model}, {run.mode}, {run.backend}, prompt for {run.hardware};"
        f" {len(run.problems)} problems x {run.attempts} attempts, {scored} scored"
    )
    return f"{text}{', ' if sheet.gaps else ''}{sheet.gaps}. Judged on {sheet.machines}."
