"""`pkb report`: files of a run and of several, and tables of verdict files."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from pkb.cli.main import cli
from pkb.records.attempt import Attempt
from pkb.records.errors import UsageError
from pkb.records.run import Run
from pkb.records.verdict import Interval, Timing, Verdict
from pkb.reporting import files, summary
from pkb.reporting.failures import Kind
from pkb.reporting.page import LETTERS
from pkb.reporting.results_table import results_markdown
from pkb.reporting.sheet import read_sheet, sheet

SECTIONS = ("headline", "curves", "failures", "map", "light", "splits", "problems")
MakeRun = Callable[..., Run]
MakeAttempt = Callable[..., Attempt]


class Page(HTMLParser):
    """Ids, and everything that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.loaded += [value for key in ("src", "srcset", "data") if (value := found.get(key))]
        if tag == "link":
            self.loaded.append(found["href"] or "")


@pytest.fixture
def two_runs(make_run: MakeRun, make_attempt: MakeAttempt, write_run) -> tuple[Path, Path]:
    """Runs of two problems: the first solves one and fails with markup in its words, the second only fails."""
    first = [
        make_attempt(speedup=1.8, problem="allreduce", mechanisms=("kernels",)),
        make_attempt("wrong", cause="race", problem="allreduce", number=1),
        make_attempt("crashed", cause="exception", detail="<script>alert(1)</script>", problem="allgather"),
        make_attempt("invalid", problem="allgather", number=1),
    ]
    second = [make_attempt("no_code", problem=problem) for problem in ("allreduce", "allgather")]
    return (
        write_run(make_run(name="first", attempts=2), first),
        write_run(make_run(name="second", attempts=1, model="mock/other"), second),
    )


def test_report_writes_page_markdown_and_csv(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report.html"
    done = CliRunner().invoke(cli, ["report", *map(str, two_runs), "-o", str(target)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "| first | strict | 1 of 2 | 25 % (0 to 50 %) |" in done.stdout
    assert str(target.with_suffix(".csv")) in done.stderr
    text = target.read_text()
    page = Page(text)
    assert set(SECTIONS) <= set(page.ids)
    assert {"p-allreduce", "p-allgather"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.loaded == ["data:,"]
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    markdown = target.with_suffix(".md").read_text()
    assert "| second | lenient | 0 of 2 |" in markdown
    assert "1 attempts not scored" in markdown
    assert "## Difference to first, strict" in markdown


def test_a_folder_of_runs_stands_for_all_of_them(two_runs: tuple[Path, Path]) -> None:
    folder = two_runs[0].parent
    done = CliRunner().invoke(cli, ["report", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "| first | strict |" in done.stdout and "| second | strict |" in done.stdout
    assert (folder / "report.html").is_file()
    assert CliRunner().invoke(cli, ["export", str(folder), "-o", str(folder / "turns.jsonl")]).exit_code == 0
    assert len((folder / "turns.jsonl").read_text().splitlines()) == 6


def test_csv_has_a_line_for_each_attempt(two_runs: tuple[Path, Path]) -> None:
    rows = list(csv.DictReader(files.csv_text([read_sheet(run) for run in two_runs]).splitlines()))
    assert tuple(rows[0]) == files.CSV_FIELDS
    assert [(row["run"], row["problem"], row["kind"], row["strict"]) for row in rows] == [
        ("first", "allreduce", "faster than the baseline", "1"),
        ("first", "allreduce", "race", "0"),
        ("first", "allgather", "launch", "0"),
        ("first", "allgather", "not scored", ""),
        ("second", "allreduce", "no code", "0"),
        ("second", "allgather", "no code", "0"),
    ]
    assert float(rows[0]["speedup"]) == pytest.approx(1.8)
    assert float(rows[0]["sol_percent"]) == pytest.approx(36.0)


def test_a_report_is_the_same_twice(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    sheets = [read_sheet(run) for run in two_runs]
    once, twice = files.write(sheets, tmp_path / "a.html"), files.write(sheets, tmp_path / "b.html")
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in twice]


def test_a_run_that_has_only_begun_is_reported(make_run: MakeRun, write_run, tmp_path: Path) -> None:
    folder = write_run(make_run(), [])
    done = CliRunner().invoke(cli, ["report", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "| one | strict | 0 of 2 | 0 % | 0 % |" in done.stdout
    assert "6 attempts not made yet" in (folder / "report.html").read_text()


def test_times_that_were_not_taken_are_no_zeros(make_run: MakeRun, make_attempt: MakeAttempt) -> None:
    found = sheet(make_run(attempts=1), [make_attempt(problem="allreduce")], where="here")
    row = next(
        line
        for line in files.markdown([found], summary.summarize([found])).splitlines()
        if line.startswith("| one | strict |")
    )
    assert row.split(" | ")[2:6] == ["1 of 2", "50 % (0 to 100 %)", "-", "-"]


def test_turns_add_up(make_run: MakeRun, make_attempt: MakeAttempt, make_turn) -> None:
    attempts = [
        make_attempt(turns=[make_turn("wrong"), make_turn(speedup=0.5, index=1), make_turn(speedup=2.0, index=2)]),
        make_attempt(turns=[make_turn(speedup=3.0)], problem="allgather"),
    ]
    found = sheet(make_run(mode="feedback", attempts=1, turns=3), attempts, where="here")
    table = summary.by_turn([found])
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["1", "50 %", "50 %"],
        ["2", "100 %", "50 %"],
        ["3", "100 %", "100 %"],
    ]
    assert "## By number of turns" in files.markdown([found], summary.summarize([found]))
    assert summary.by_turn([sheet(make_run(), [], where="here")]) is None


def test_a_later_attempt_with_the_same_index_counts(make_run: MakeRun, make_attempt: MakeAttempt) -> None:
    again = [make_attempt("invalid"), make_attempt(speedup=2.0)]
    assert [tried.kind for tried in sheet(make_run(), again, where="here").tries["allreduce"]] == [Kind.FAST]


def test_mixed_folders_are_refused(make_run: MakeRun, make_attempt: MakeAttempt, write_run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"attempts.jsonl: attempt 0 is at 'elsewhere', which run 'one' did not ask"):
        read_sheet(write_run(make_run(), [make_attempt(problem="elsewhere")]))
    run = write_run(make_run(name="two"), [])
    copy = shutil.copytree(run, tmp_path / "copies" / "two")
    other = tmp_path / "verdicts.jsonl"
    other.write_text("")
    for arguments, message in (
        ([run, other], "no run, but"),
        ([run, copy], "two runs are named 'two'"),
        ([run, "-o", tmp_path / "x.pdf"], "expected a name that ends in .html"),
        ([other, "-o", tmp_path / "x.html"], "expected a name that ends in .md"),
        ([tmp_path / "absent"], "no such file or folder"),
    ):
        done = CliRunner().invoke(cli, ["report", *map(str, arguments)])
        assert isinstance(done.exception, UsageError) and message in str(done.exception)


def test_every_kind_has_a_letter_of_its_own() -> None:
    assert set(LETTERS) == set(Kind)
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_results_of_verdict_files(make_verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    timing = Timing(
        size="large", candidate_us=50.0, baseline_us=100.0, speedup=2.0, iterations=10, sol_us=30.0, sol_bound="link",
        speedup_interval=Interval(low=1.9, high=2.1),
    )  # fmt: skip
    slower = timing.model_copy(update={"candidate_us": 200.0, "speedup": 0.5, "speedup_interval": None})
    shared = {"device": "shared-gpu", "library": False}
    for verdict in (
        make_verdict(timings=(slower,), created="2026-01-01T00:00:00Z"),
        make_verdict(timings=(timing,), created="2026-01-02T00:00:00Z", library=False),
        make_verdict(**shared, world_size=2),
        make_verdict("hung", **shared, world_size=8),
    ):
        verdict.save(tmp_path / "some.jsonl")
    text = results_markdown([tmp_path])
    assert "## 4x NVIDIA H200, cuda" in text
    # The later verdict on the same thing counts.
    assert (
        "| allreduce | mine | 4 | bf16 | large | 100.0 us | 50.0 us | 2.00x (1.90 to 2.10) | 60 | link | no |" in text
    )
    assert "0.50x" not in text
    assert "| allreduce | mine | 1 of 2 | 2, 8 | bf16 | tiny | 6 | hung: deadlock |" in text


def test_results_go_to_a_file(make_verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    make_verdict().save(tmp_path / "some.jsonl")
    target = tmp_path / "results.md"
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "some.jsonl"), "-o", str(target)], catch_exceptions=False)
    assert done.exit_code == 0 and done.stdout == ""
    assert target.read_text() == results_markdown([tmp_path / "some.jsonl"])
