"""Verdicts as JSON Lines: appended one line each, read back with the file and line of what is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pkb.records.errors import UsageError
from pkb.records.run_folder import ATTEMPTS_FILE, RUN_FILE, RunFolder
from pkb.records.verdict import Verdict

_SCHEMA_VERSION = Verdict.model_fields["schema_version"].default


def append(path: str | Path, verdict: Verdict) -> None:
    """Append one verdict as one line; parent folders are made."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8") as out:
            out.write(verdict.model_dump_json() + "\n")
    except OSError as error:
        raise UsageError(f"{target}: cannot write the verdict ({error.strerror}). Give a writable path.") from error


def load(path: str | Path) -> list[Verdict]:
    """Read the verdicts of a `.jsonl` file, or of every such file below a folder, in file and line order.

    Of a run that `pkb generate` wrote, these are the verdicts on all replies, attempt by attempt.

    Raises:
        UsageError: nothing is there, a line is no verdict, or it was written with a newer schema.
    """
    root = Path(path)
    if not root.exists():
        raise UsageError(f"{root}: no such file or folder. Give a .jsonl file or a folder that holds some.")
    if not root.is_dir():
        return list(_verdicts_of_run(root.parent) if _is_of_attempts(root) else _read(root))
    runs = {file.parent for file in root.rglob(RUN_FILE)}
    files = [file for file in root.rglob("*.jsonl") if _is_of_attempts(file) or not runs & set(file.parents)]
    found = (_verdicts_of_run(file.parent) if _is_of_attempts(file) else _read(file) for file in sorted(files))
    return [verdict for verdicts in found for verdict in verdicts]


def _is_of_attempts(file: Path) -> bool:
    """The attempts of a run, which hold its verdicts; whatever else lies in its folder repeats them."""
    return file.name == ATTEMPTS_FILE and RunFolder(file.parent).exists()


def _verdicts_of_run(folder: Path) -> Iterator[Verdict]:
    for attempt in RunFolder(folder).attempts():
        yield from (turn.verdict for turn in attempt.turns if turn.verdict is not None)


def _read(file: Path) -> Iterator[Verdict]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, where=f"{file}:{number}")


def _parse(line: str, where: str) -> Verdict:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON ({error}). Each line must be one verdict record.") from error
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != _SCHEMA_VERSION:
        raise UsageError(
            f"{where}: schema version {version!r}, this pkb reads {_SCHEMA_VERSION}. Use the pkb that wrote it."
        )
    try:
        return Verdict.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}: not a verdict record: {error}") from error
