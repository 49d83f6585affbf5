"""How often the judge names the true cause of a wrong result: planted bugs, judged on CPU ranks.

    python benchmarks/explanations.py                          # the whole corpus
    python benchmarks/explanations.py --quick                  # one bug of each cause in each file
    python benchmarks/explanations.py --half tune --only ring_attention
    python benchmarks/explanations.py --out runs/explanations.jsonl

The corpus is `benchmarks/planted_bugs/*.toml`: small changes to references and portable solutions, each with the
causes that are right. A bug counts as named when, at every world size, the verdict is `wrong`, its cause is one of
them and its sentence says what it has to. Which half a bug belongs to follows from a hash of its name; hypotheses
are made on the half `tune` only, `held` says what they are worth on bugs they were not made for.
Exit code 1 if less than 90 % of the bugs asked for are named.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.problems._find import get_problem
from pkb.records.base import Record
from pkb.records.verdict import Cause, Status, Verdict

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "benchmarks" / "planted_bugs"
TARGET = 0.9
SEED = "5" * 64
"""Draws and delays are the same in each run, so that two scores can be compared."""


class Bug(Record):
    """A small change that makes a right program wrong, and what is to be said of it."""

    problem: str
    """Id of the problem."""
    name: str
    """What is wrong, in a few words; unique within the problem."""
    causes: tuple[Cause, ...] = Field(min_length=1)
    """Causes of which each is right; more than one only where they describe the same mistake."""
    edits: tuple[tuple[str, str], ...] = Field(min_length=1)
    """(old, new): each old text stands in the program and is replaced everywhere, in order."""
    says: str = ""
    """Regular expression that the sentence has to contain."""
    base: Literal["reference", "portable"] = "reference"
    """Which right program is changed: the problem's reference, or our portable solution."""
    world_sizes: tuple[int, ...] = (2, 4)
    """Numbers of ranks at which the mistake is wrong and its cause unambiguous."""

    @property
    def id(self) -> str:
        """Problem and name."""
        return f"{self.problem}: {self.name}"

    @property
    def half(self) -> str:
        """Half of the corpus, by a hash, so that nobody chooses."""
        return "held" if hashlib.sha256(self.id.encode()).digest()[0] % 2 else "tune"

    def source(self) -> str:
        """The program with the bug.

        Raises:
            ValueError: an edit does not apply.
        """
        reference = get_problem(self.problem).reference_path
        path = reference if self.base == "reference" else ROOT / "solutions" / self.problem / "portable/solution.py"
        text = path.read_text(encoding="utf-8")
        for old, new in self.edits:
            if old not in text:
                raise ValueError(f"{self.id}: {path} does not contain {old!r}; the edit must be brought up to date")
            text = text.replace(old, new)
        return text


class Named(Record):
    """What the judge said of one bug at one world size."""

    bug: Bug
    """The bug."""
    half: str
    """Its half of the corpus."""
    verdict: Verdict
    """What the judge said, with the fingerprint of machine and software."""

    @property
    def cause(self) -> str:
        """The named cause, or the status of a candidate that was not found wrong."""
        failure = self.verdict.failure
        return str(failure.cause) if self.verdict.status is Status.WRONG and failure else str(self.verdict.status)

    @property
    def is_right(self) -> bool:
        """The named cause is a right one and the sentence says what it has to."""
        failure = self.verdict.failure
        if self.verdict.status is not Status.WRONG or failure is None or failure.cause not in self.bug.causes:
            return False
        return re.search(self.bug.says, failure.detail, re.IGNORECASE) is not None


def corpus() -> list[Bug]:
    """All planted bugs, by file and place."""
    return [bug for of_file in _files().values() for bug in of_file]


def quick_part() -> list[Bug]:
    """The first bug of each cause in each file."""
    return [bug for bugs in _files().values() for bug in {b.causes[0]: b for b in reversed(bugs)}.values()]


def judge_bugs(bugs: Sequence[Bug], world_size: int) -> Iterable[Named]:
    """Judge bugs one after the other in one session."""
    config = JudgeConfig(device="cpu", world_size=world_size, size="tiny", rounds=0, seed=SEED)
    with Judge(config) as judge, tempfile.TemporaryDirectory() as folder:
        for number, bug in enumerate(bugs):
            path = Path(folder) / f"bug_{number}.py"
            path.write_text(bug.source(), encoding="utf-8")
            yield Named(bug=bug, half=bug.half, verdict=judge.judge(bug.problem, path, more=True))


def score(found: Sequence[Named]) -> tuple[int, int]:
    """How many bugs are named at every world size, of how many."""
    missed = {named.bug.id for named in found if not named.is_right}
    total = {named.bug.id for named in found}
    return len(total - missed), len(total)


@click.command()
@click.option("--half", type=click.Choice(["tune", "held", "all"]), default="all", show_default=True)
@click.option("--quick", is_flag=True, help="One bug of each cause in each file.")
@click.option("--only", default="", help="Part of `problem: name` that a bug must have.")
@click.option("--world-sizes", default="2,4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="File to append a record of each verdict to.")
def main(half: str, quick: bool, only: str, world_sizes: str, out: Path | None) -> None:
    """Judge planted bugs and print each miss and the score."""
    begin = time.monotonic()
    chosen = [b for b in (quick_part() if quick else corpus()) if half in (b.half, "all") and only in b.id]
    found: list[Named] = []
    for world_size in map(int, world_sizes.split(",")):
        for named in judge_bugs([b for b in chosen if world_size in b.world_sizes], world_size):
            found.append(named)
            if not named.is_right:
                print(_miss(named), flush=True)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(named.model_dump_json() + "\n")
    for part in ("tune", "held", "all"):
        num_right, num_bugs = score([named for named in found if part in (named.half, "all")])
        if num_bugs:
            print(f"{part}: {num_right} of {num_bugs} bugs named ({num_right / num_bugs:.1%})")
    print(f"{len(found)} verdicts in {time.monotonic() - begin:.0f} s")
    num_right, num_bugs = score(found)
    sys.exit(0 if num_right >= TARGET * num_bugs else 1)


def _files() -> dict[str, list[Bug]]:
    found = {}
    for file in sorted(CORPUS.glob("*.toml")):
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["bug"]
        found[file.name] = [Bug.model_validate(entry) for entry in entries]
    return found


def _miss(named: Named) -> str:
    failure, wanted = named.verdict.failure, " or ".join(named.bug.causes)
    says = f" that says {named.bug.says!r}" if named.bug.says else ""
    detail = failure.detail if failure else str(named.verdict)
    where = f"{named.bug.id} ({named.half}, {named.verdict.world_size} ranks)"
    return f"MISS {where}: expected {wanted}{says}, named {named.cause}: {detail}"


if __name__ == "__main__":
    main()
