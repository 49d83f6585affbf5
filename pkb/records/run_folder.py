"""Folder of a run: run.json, attempts.jsonl and logs/. Lines are only ever appended, so that a kill loses none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pkb.records.attempt import Attempt
from pkb.records.errors import UsageError
from pkb.records.run import Run

RUN_FILE = "run.json"
ATTEMPTS_FILE = "attempts.jsonl"
LOGS_FOLDER = "logs"

_Kind = TypeVar("_Kind", bound=BaseModel)


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: str | Path) -> None:
        """Name a folder; nothing is read or made yet."""
        self.path = Path(path)

    @property
    def logs(self) -> Path:
        """Where the evaluation framework's own logs are."""
        return self.path / LOGS_FOLDER

    def exists(self) -> bool:
        """A run was begun here."""
        return (self.path / RUN_FILE).is_file()

    def create(self, run: Run) -> None:
        """Begin a run; parent folders are made.

        Raises:
            UsageError: a run is there already, or the folder cannot be written.
        """
        if self.exists():
            raise UsageError(
                f"{self.path}: holds a run already. Give another folder, or the same request to resume it."
            )
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            part = self.path / f".{RUN_FILE}.{os.getpid()}"
            part.write_text(run.model_dump_json(indent=1) + "\n", encoding="utf-8")
            part.replace(self.path / RUN_FILE)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot write the run ({error.strerror}). Give a writable folder."
            ) from error

    def run(self) -> Run:
        """What was asked.

        Raises:
            UsageError: no run is there, or it was written with another schema.
        """
        file = self.path / RUN_FILE
        if not file.is_file():
            raise UsageError(f"{self.path}: no {RUN_FILE} in it. Give a folder that `pkb generate -o` wrote.")
        return parse(Run, file.read_text(encoding="utf-8"), where=str(file))

    def attempts(self) -> list[Attempt]:
        """All attempts in the order in which they were last written: one that an error ended is made anew.

        Raises:
            UsageError: a line is no attempt.
        """
        file = self.path / ATTEMPTS_FILE
        latest: dict[tuple[str, int], Attempt] = {}
        for number, line in whole_lines(file):
            attempt = parse(Attempt, line, where=f"{file}:{number}")
            latest.pop((attempt.problem, attempt.index), None)
            latest[attempt.problem, attempt.index] = attempt
        return list(latest.values())

    def append(self, attempt: Attempt) -> None:
        """Write an attempt that has ended."""
        append_line(self.path / ATTEMPTS_FILE, attempt)


def append_line(file: Path, record: BaseModel) -> None:
    """Append a record as one line that is on the disk when this returns.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        _end_last_line(file)
        with file.open("ab") as out:
            out.write(record.model_dump_json().encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written ({error.strerror}). Make room or give a writable folder."
        ) from error


def whole_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that was written to its end; none if there is no file."""
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            # A kill in the middle of a write leaves a last line without its end: it was never written.
            if line.endswith(b"\n") and line.strip():
                yield number, line.decode("utf-8")


def parse(kind: type[_Kind], text: str, where: str) -> _Kind:
    """A record from JSON.

    Raises:
        UsageError: it is none, named with the place.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{where}: not a record of kind {kind.__name__}, or of another version: {error}") from error


def _end_last_line(file: Path) -> None:
    """Cut off a line that a kill left without its end, so that the next one does not continue it."""
    if not file.is_file() or file.stat().st_size == 0:
        return
    with file.open("r+b") as out:
        content_end = out.seek(-1, os.SEEK_END)
        if out.read(1) == b"\n":
            return
        out.seek(0)
        whole = out.read(content_end + 1)
        out.truncate(whole.rfind(b"\n") + 1)
