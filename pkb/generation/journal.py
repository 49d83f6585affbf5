"""What cost money or GPU time, written down the moment it is there, so that a resumed run repeats none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pkb.records.base import Record
from pkb.records.errors import UsageError
from pkb.records.run_folder import append_line, parse, whole_lines
from pkb.records.verdict import Verdict


class Key(NamedTuple):
    """Which call of which attempt."""

    problem: str
    attempt: int
    step: int
    """Number of the reply, or of the judgement, within the attempt."""


class ReplyEntry(Record):
    """A reply of the model."""

    key: Key
    """Which reply."""
    request_sha256: str
    """Hash over the messages that it answers."""
    output: dict[str, Any]
    """The reply as the evaluation framework holds it, usage included."""


class VerdictEntry(Record):
    """A judgement."""

    key: Key
    """Which judgement."""
    request_sha256: str
    """Hash over the code and how far it was to be judged."""
    verdict: Verdict
    """The outcome."""


class Journal:
    """Replies and verdicts of a run; kept in memory alone if there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        """Read what an earlier process wrote.

        Raises:
            UsageError: a line cannot be read, or the folder cannot be written.
        """
        self._folder = folder
        self._replies: dict[Key, ReplyEntry] = {}
        self._verdicts: dict[Key, VerdictEntry] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for number, line in whole_lines(folder / "replies.jsonl"):
                reply = parse(ReplyEntry, line, where=f"{folder / 'replies.jsonl'}:{number}")
                self._replies[reply.key] = reply
            for number, line in whole_lines(folder / "verdicts.jsonl"):
                verdict = parse(VerdictEntry, line, where=f"{folder / 'verdicts.jsonl'}:{number}")
                self._verdicts[verdict.key] = verdict

    def reply(self, key: Key, request_sha256: str) -> dict[str, Any] | None:
        """The reply to a request, if it is there.

        Raises:
            UsageError: there is one, to another request.
        """
        entry = self._replies.get(key)
        if entry is None:
            return None
        if entry.request_sha256 != request_sha256:
            raise UsageError(
                f"{self._folder}: reply {key.step} of attempt {key.attempt} at {key.problem} answers another prompt:"
                " the prompts or the problem have changed since the run began. Start a new run in another folder."
            )
        return entry.output

    def add_reply(self, key: Key, request_sha256: str, output: dict[str, Any]) -> None:
        """Write a reply down."""
        self._replies[key] = entry = ReplyEntry(key=key, request_sha256=request_sha256, output=output)
        if self._folder is not None:
            append_line(self._folder / "replies.jsonl", entry)

    def verdict(self, key: Key, request_sha256: str) -> Verdict | None:
        """The verdict on the same code, if it is there."""
        entry = self._verdicts.get(key)
        return entry.verdict if entry is not None and entry.request_sha256 == request_sha256 else None

    def add_verdict(self, key: Key, request_sha256: str, verdict: Verdict) -> None:
        """Write a verdict down."""
        self._verdicts[key] = entry = VerdictEntry(key=key, request_sha256=request_sha256, verdict=verdict)
        if self._folder is not None:
            append_line(self._folder / "verdicts.jsonl", entry)
