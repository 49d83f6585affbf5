"""The tables of a report, as text cells: headline, comparison, splits, failure kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pkb.records.attempt import Attempt
from pkb.records.run import RunProblem
from pkb.reporting import scores, words
from pkb.reporting.bootstrap import Estimate
from pkb.reporting.failures import FAMILY_OF, Kind, shares
from pkb.reporting.scores import THRESHOLDS, Column, Results, fast_p, is_timed, results_of
from pkb.reporting.sheet import Sheet
from pkb.reporting.splits import Way, class_of, group_of, mechanisms_of, parallelism_words, results_by, ways

_MOST_TURN_ROWS = 10


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    text: str
    interval: str = ""
    """Its 95 % interval; empty where there is none."""

    def __str__(self) -> str:
        """Both on one line."""
        return f"{self.text} ({self.interval})" if self.interval else self.text


@dataclass(frozen=True)
class Table:
    """A table: the first `num_names` columns name the row, the others hold numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_names: int = 1


@dataclass(frozen=True)
class Summary:
    """All tables of a report."""

    headline: Table
    comparison: Table | None
    failures: Table
    splits: tuple[Table, ...]


def summarize(sheets: Sequence[Sheet]) -> Summary:
    """All tables of one run or several."""
    return Summary(headline(sheets), comparison(sheets), failure_kinds(sheets), splits(sheets))


def headline(sheets: Sequence[Sheet]) -> Table:
    """Scores of each run, strict and lenient."""
    most = max(sheet.run.attempts for sheet in sheets)
    heads = ["run", "column", "solved"]
    heads += [f"fast_{words.threshold(p)}@1" for p in (0.0, 1.0)]
    heads += [f"fast_{words.threshold(p)}@{most}" for p in THRESHOLDS] if most > 1 else ["fast_1.5@1", "fast_2@1"]
    heads += ["geomean, correct only", "geomean, failures as 1x", "tokens / solved", "cost / solved"]
    rows = tuple(_headline_row(sheet, column, most) for sheet in sheets for column in Column)
    return Table("Scores", tuple(heads), rows, num_names=2)


def comparison(sheets: Sequence[Sheet]) -> Table | None:
    """Differences of each further run to the first, over the problems that both were asked; None for one run."""
    if len(sheets) < 2:
        return None
    first, most = sheets[0], min(sheet.run.attempts for sheet in sheets)
    ks = (1, most) if most > 1 else (1,)
    heads = ("run", "common problems", *(f"fast_{p:g}@{k}" for p in (0.0, 1.0) for k in ks))
    rows = []
    for sheet in sheets[1:]:
        common = sum(problem in first.strict for problem in sheet.strict)
        cells = [Cell(sheet.run.name), Cell(str(common))]
        for p in (0.0, 1.0):
            timed = p == 0 or (is_timed(sheet.strict) and is_timed(first.strict))
            for k in ks:
                found = scores.fast_p_difference(sheet.strict, first.strict, p, k) if timed else None
                cells.append(_cell(found, words.points))
        rows.append(tuple(cells))
    return Table(f"Difference to {first.run.name}, strict", heads, tuple(rows))


def splits(sheets: Sequence[Sheet]) -> tuple[Table, ...]:
    """Scores by group and parallelism of problems and by turns; correct attempts by class and mechanism."""
    turns = by_turn(sheets)
    return (
        _by_problem("By group", sheets, group_of),
        _by_problem("By parallelism", sheets, parallelism_words),
        _by_way("By class of solution", sheets, lambda sheet: ways(sheet.attempts, class_of)),
        _by_way("By mechanism", sheets, lambda sheet: ways(sheet.attempts, mechanisms_of)),
        *([turns] if turns is not None else []),
    )


def by_turn(sheets: Sequence[Sheet]) -> Table | None:
    """Scores if attempts had ended after each number of turns; None if all runs have one turn."""
    most = max(sheet.run.turns for sheet in sheets)
    if most == 1:
        return None
    heads = ["turns"]
    for sheet in sheets:
        heads += [f"{sheet.run.name}: fast_{p:g}@{sheet.run.attempts}" for p in (0.0, 1.0)]
    rows = []
    for turns in sorted({*range(1, min(most, _MOST_TURN_ROWS) + 1), most}):
        cells = [Cell(str(turns))]
        for sheet in sheets:
            results = results_of(_cut(sheet, turns), Column.STRICT)
            for p in (0.0, 1.0):
                known = turns <= sheet.run.turns and (p == 0 or is_timed(sheet.strict))
                cells.append(_share(results, p, sheet.run.attempts) if known else Cell(words.NONE))
        rows.append(tuple(cells))
    return Table("By number of turns", tuple(heads), tuple(rows))


def failure_kinds(sheets: Sequence[Sheet]) -> Table:
    """Share of scored attempts of each kind, with the family of the kind."""
    found = [shares(tried.attempt for tried in sheet.all) for sheet in sheets]
    rows = [
        (Cell(str(FAMILY_OF[kind])), Cell(str(kind)), *(Cell(words.percent(share[kind])) for share in found))
        for kind in Kind
        if kind is not Kind.NOT_SCORED and any(share[kind] for share in found)
    ]
    heads = ("family", "kind", *(sheet.run.name for sheet in sheets))
    return Table("What became of attempts", heads, tuple(rows), num_names=2)


def _cut(sheet: Sheet, turns: int) -> dict[str, list[Attempt]]:
    """Attempts as if they had ended after so many turns."""
    return {
        problem: [attempt.model_copy(update={"turns": attempt.turns[:turns]}) for attempt in attempts]
        for problem, attempts in sheet.attempts.items()
    }


def _headline_row(sheet: Sheet, column: Column, most: int) -> tuple[Cell, ...]:
    results, k = sheet.results(column), min(most, sheet.run.attempts)
    timed = is_timed(results)
    spent = scores.spending(sheet.attempts, results)
    cells = [Cell(sheet.run.name), Cell(str(column)), Cell(f"{spent.num_solved} of {len(results)}")]
    asked = [(0.0, 1), (1.0, 1), *((p, k) for p in THRESHOLDS)] if most > 1 else [(p, 1) for p in THRESHOLDS]
    cells += [_share(results, p, at) if p == 0 or timed else Cell(words.NONE) for p, at in asked]
    cells.append(_cell(scores.geomean_speedup(results, k), words.times))
    cells.append(_cell(scores.geomean_speedup_or_one(results, k) if timed else None, words.times))
    cells.append(Cell(words.count(spent.per_solved(lambda usage: usage.input_tokens + usage.output_tokens))))
    cells.append(Cell(words.dollars(spent.per_solved(lambda usage: usage.cost_usd))))
    return tuple(cells)


def _by_problem(title: str, sheets: Sequence[Sheet], names: Callable[[RunProblem], Iterable[str]]) -> Table:
    parts = [results_by(sheet.run.problems, sheet.strict, names) for sheet in sheets]
    every = dict.fromkeys(name for part in parts for name in part)
    heads = [title.removeprefix("By "), "problems"]
    for sheet in sheets:
        heads += [f"{sheet.run.name}: fast_{p:g}@{sheet.run.attempts}" for p in (0.0, 1.0)]
    rows = []
    for name in every:
        cells = [Cell(name), Cell(str(max(len(part.get(name, ())) for part in parts)))]
        for sheet, part in zip(sheets, parts, strict=True):
            k = sheet.run.attempts
            for p in (0.0, 1.0):
                known = name in part and (p == 0 or is_timed(sheet.strict))
                cells.append(_share(part[name], p, k) if known else Cell(words.NONE))
        rows.append(tuple(cells))
    return Table(title, tuple(heads), tuple(rows))


def _by_way(title: str, sheets: Sequence[Sheet], ways_of: Callable[[Sheet], Iterable[Way]]) -> Table:
    found = [{way.name: way for way in ways_of(sheet)} for sheet in sheets]
    heads = [title.removeprefix("By ")]
    for sheet in sheets:
        heads += [f"{sheet.run.name}: {what}" for what in ("correct attempts", "problems", "geomean speedup")]
    rows = []
    for name in dict.fromkeys(name for part in found for name in part):
        cells = [Cell(name)]
        for part in found:
            way = part.get(name)
            cells += [
                Cell(words.count(way.num_attempts if way else 0)),
                Cell(words.count(way.num_problems if way else 0)),
                Cell(words.times(way.geomean if way else None)),
            ]
        rows.append(tuple(cells))
    return Table(title, tuple(heads), tuple(rows))


def _share(results: Results, p: float, k: int) -> Cell:
    return _cell(fast_p(results, p, k), words.percent)


def _cell(found: Estimate | None, form: Callable[[float], str]) -> Cell:
    return Cell(words.NONE if found is None else form(found.value), words.interval(found, form))
