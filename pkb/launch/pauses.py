"""Holding a rank up in the middle of a call: at one line of the candidate's Python, a different one each time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class LinePauses:
    """Calls a candidate and pauses it once, at the first visit of a line in one of its files.

    Between which two steps a rank can be overtaken by its peers decides whether a race shows. Lines are taken
    in the order in which a call first visits them, so counting through them tries every place in turn; what a
    kernel or an extension does within one line is not reached.
    """

    def __init__(self, folder: str) -> None:
        """Pause in files of this folder only."""
        self._folder = folder
        self._num_lines = 0
        """Lines that the last paused call visited."""

    def call(
        self, solution: Callable[..., Any], arguments: tuple[Any, ...], *, line: int, pause: Callable[[], None]
    ) -> Any:
        """Result of one call in which `pause` runs before a line; never in the first, which only counts lines.

        Args:
            solution: what to call.
            arguments: what to call it with.
            line: number of the line in order of visits, modulo how many the last paused call has visited.
            pause: runs at most once.
        """
        seen: set[tuple[str, int]] = set()
        target = line % self._num_lines if self._num_lines else -1

        def visit(frame: FrameType, event: str, _: Any) -> Any:
            place = (frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and place not in seen:
                if len(seen) == target:
                    pause()
                seen.add(place)
            return visit

        def enter(frame: FrameType, _: str, __: Any) -> Any:
            return visit if frame.f_code.co_filename.startswith(self._folder) else None

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            return solution(*arguments)
        finally:
            sys.settrace(before)
            self._num_lines = len(seen)
