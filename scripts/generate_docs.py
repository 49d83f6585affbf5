"""Write docs/records.md from the docstrings of the records; with --check only say whether it is up to date."""

from __future__ import annotations

import sys
import types
import typing
from pathlib import Path
from typing import Any

from pkb.records.base import Record
from pkb.records.machine import Fingerprint
from pkb.records.solution import Solution
from pkb.records.verdict import CAUSES_OF, Failure, Interval, Mismatch, RankState, Status, Timing, Trial, Verdict

TARGET = Path(__file__).resolve().parents[1] / "docs" / "records.md"
RECORDS = (Verdict, Failure, Mismatch, RankState, Trial, Timing, Interval, Solution, Fingerprint)


def main() -> int:
    """Write or check; returns the exit code."""
    text = render()
    if "--check" in sys.argv:
        if TARGET.read_text() == text:
            return 0
        print(f"{TARGET} is out of date: run python scripts/generate_docs.py", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


def render() -> str:
    """The page."""
    intro = (
        "# Records\n\nA verdict is one JSON object on one line (`pkb judge --json`, `Verdict.save`). This page is"
        " generated from the records' docstrings by `python scripts/generate_docs.py`.\n"
    )
    causes = "## Causes by status\n\n| status | causes |\n|---|---|\n" + "".join(map(_causes, Status))
    return "\n".join([intro, *map(_table, RECORDS), causes])


def _causes(status: Status) -> str:
    names = ", ".join(f"`{cause}`" for cause in sorted(CAUSES_OF.get(status, frozenset())))
    return f"| `{status}` | {names or 'none'} |\n"


def _table(record: type[Record]) -> str:
    summary = (record.__doc__ or "").strip().splitlines()[0]
    rows = [
        f"| `{name}` | {_name(field.annotation)} | {' '.join((field.description or '').split())} |"
        for name, field in record.model_fields.items()
    ]
    return f"## {record.__name__}\n{summary}\n\n| field | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _name(annotation: Any) -> str:
    """A type as a reader of JSON sees it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    if origin is dict:
        return f"map of {_name(arguments[0])} to {_name(arguments[1])}"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_name(argument) for argument in arguments)
    if annotation is type(None):
        return "null"
    return str(annotation.__name__)


if __name__ == "__main__":
    sys.exit(main())
