"""The HTML page of a report: one file that holds its styles, scripts and pictures, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jinja2
from markupsafe import Markup

from pkb.records.run import RunProblem
from pkb.records.verdict import Timing, Verdict
from pkb.reporting import charts, words
from pkb.reporting.failures import MEANINGS, Kind, shares
from pkb.reporting.sheet import Sheet, Tried
from pkb.reporting.splits import parallelism_words
from pkb.reporting.summary import Summary

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_CODE_CHARS = 40_000
_MAX_LOG_CHARS = 4_000
_MAX_LINE_CHARS = 220

# One character a kind, for cells that must be told apart without color.
LETTERS = {
    Kind.FAST: "+",
    Kind.UNTIMED: "o",
    Kind.SLOW: "-",
    Kind.LIBRARY_FALLBACK: "L",
    Kind.NO_CODE: "n",
    Kind.SYNTAX: "s",
    Kind.INTERFACE: "i",
    Kind.COMPILE: "c",
    Kind.LINK: "k",
    Kind.LAUNCH: "x",
    Kind.RANK_COORDINATION: "r",
    Kind.RACE: "~",
    Kind.HANG: "h",
    Kind.WRONG_NUMBERS: "w",
    Kind.REFUSED: "!",
    Kind.NOT_SCORED: "?",
}


@dataclass(frozen=True)
class Answer:
    """What one run has to say about one problem."""

    run: int
    sheet: Sheet
    problem: str

    @cached_property
    def tries(self) -> tuple[Tried, ...]:
        """All attempts at it."""
        return self.sheet.tries.get(self.problem, ())

    @cached_property
    def best(self) -> Tried | None:
        """The attempt that got furthest."""
        return self.sheet.best(self.problem)

    @property
    def verdict(self) -> Verdict | None:
        """How the best attempt was judged."""
        return self.best.turn.verdict if self.best is not None and self.best.turn is not None else None

    @property
    def rank(self) -> str:
        """How far it got, as one word that filters read: `fast`, `solved`, `correct`, `failed`, `none`."""
        if self.best is None:
            return "none"
        words_of = {Kind.FAST: "fast", Kind.UNTIMED: "solved", Kind.SLOW: "solved", Kind.LIBRARY_FALLBACK: "correct"}
        return words_of.get(self.best.kind, "failed")

    @property
    def code(self) -> str:
        """Source of the best attempt, cut if it is very long."""
        code = self.best.turn.code if self.best is not None and self.best.turn is not None else ""
        return _cut(code, _MAX_CODE_CHARS)

    @property
    def log(self) -> str:
        """The end of what compilers and ranks printed."""
        log = self.verdict.failure.log if self.verdict is not None and self.verdict.failure is not None else ""
        return log if len(log) <= _MAX_LOG_CHARS else "...\n" + log[-_MAX_LOG_CHARS:]

    def line(self, tried: Tried) -> str:
        """An attempt in one line: what became of it, and why."""
        if tried.kind is Kind.FAST or tried.kind is Kind.SLOW or tried.kind is Kind.LIBRARY_FALLBACK:
            why = words.times(tried.speedup)
        elif tried.turn is not None and tried.turn.verdict is not None and tried.turn.verdict.failure is not None:
            why = tried.turn.verdict.failure.detail
        else:
            why = tried.attempt.error or (str(tried.turn.extraction).replace("_", " ") if tried.turn else "no reply")
        why = " ".join(why.split())
        return why if len(why) <= _MAX_LINE_CHARS else why[: _MAX_LINE_CHARS - 3] + "..."


@dataclass(frozen=True)
class Part:
    """A problem with what every run made of it."""

    problem: RunProblem
    answers: tuple[Answer, ...]

    @property
    def parallelism(self) -> str:
        """Words of its parallelism between spaces and bars, as filters read them."""
        return "|".join(parallelism_words(self.problem))


def render(sheets: Sequence[Sheet], tables: Summary) -> str:
    """The page for one run or several, with their tables."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(words=words, letters=LETTERS, meanings=MEANINGS, sol=_sol)
    parts = list(_parts(sheets))
    return environment.get_template("report.html").render(
        title="pkb report: " + ", ".join(sheet.run.name for sheet in sheets),
        sheets=sheets,
        parts=parts,
        groups=sorted({part.problem.group for part in parts}),
        parallelisms=sorted({word for part in parts for word in parallelism_words(part.problem)}),
        tables=tables,
        bars=[_bar(sheet) for sheet in sheets],
        kinds=[kind for kind in Kind if any(tried.kind is kind for sheet in sheets for tried in sheet.all)],
        curves=(charts.share_by_threshold(sheets), charts.share_by_attempts(sheets)),
        light=charts.speedup_by_light(sheets),
        styles=_raw("report.css"),
        script=_raw("report.js"),
        width=charts.WIDTH,
        height=charts.HEIGHT,
    )


def _parts(sheets: Sequence[Sheet]) -> Iterator[Part]:
    problems = {problem.id: problem for sheet in sheets for problem in sheet.run.problems}
    for problem in sorted(problems.values(), key=lambda problem: (problem.number, problem.id)):
        answers = tuple(
            Answer(number, sheet, problem.id) for number, sheet in enumerate(sheets) if problem.id in sheet.tries
        )
        yield Part(problem, answers)


def _bar(sheet: Sheet) -> list[tuple[Kind, float]]:
    """Kinds of a run with their shares of scored attempts, in the order of the legend."""
    table = shares(tried.attempt for tried in sheet.all)
    return [(kind, share) for kind, share in table.items() if share]


def _sol(timing: Timing) -> str:
    """% of speed of light with what bounds it."""
    return words.NONE if timing.sol_percent is None else f"{timing.sol_percent:.0f} % ({timing.sol_bound})"


def _raw(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n... {len(text) - most} more characters: `pkb export` has all of them."
