"""A live line on stderr that says which phase runs; plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner

from pkb.records.verdict import Phase


class ProgressLine:
    """Shows the phase of what is being judged; a context manager that clears its line at the end."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._console = Console(stderr=True)
        self._spinner: Spinner | None = None
        self._last: tuple[str, Phase] | None = None

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._spinner = self._console.status(f"{self._label}: starting")
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def name(self, label: str) -> None:
        """Say what is being judged from now on."""
        self._label = label

    def __call__(self, phase: Phase, step: str) -> None:
        """Show a phase and its step."""
        text = f"{self._label}: {phase}{f', {step}' if step else ''}"
        if self._spinner is not None:
            self._spinner.update(text)
        elif self._last != (self._label, phase):
            # Without a terminal a line for each phase, not for each step, keeps logs short.
            print(text, file=sys.stderr, flush=True)
        self._last = (self._label, phase)
