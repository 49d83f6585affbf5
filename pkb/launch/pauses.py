"""Holding a rank up in the middle of a call: at one line of the candidate's Python, a different one each time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

_Place = tuple[str, int]
"""A file and a line in it."""


class LinePauses:
    """Calls a candidate and pauses it once, at the first visit of a line in one of its files.

    Between which two steps a rank can be overtaken by its peers decides whether a race shows. So lines take turns:
    each is tried before one is tried again, whichever lines a call happens to visit. What a kernel or an extension
    does within one line is not reached.
    """

    def __init__(self, folder: str) -> None:
        """Pause in files of this folder only."""
        self._folder = folder
        self._visited: list[_Place] = []
        """Lines of the last paused call, in the order in which it first visited them."""
        self._paused: Counter[_Place] = Counter()
        """How often each line was paused at."""

    def call(
        self, solution: Callable[..., Any], arguments: tuple[Any, ...], *, line: int, pause: Callable[[], None] | None
    ) -> Any:
        """Result of one call in which `pause` runs before a line; never in the first, which only notes lines.

        Args:
            solution: what to call.
            arguments: what to call it with.
            line: which of the lines whose turn it is, in order of visits and modulo their number.
            pause: runs at most once; None only notes lines.
        """
        target = self._turn(line) if pause is not None else None
        seen: dict[_Place, None] = {}

        def visit(frame: FrameType, event: str, _: Any) -> Any:
            place = (frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and place not in seen:
                if pause is not None and place == target:
                    self._paused[place] += 1
                    pause()
                seen[place] = None
            return visit

        def enter(frame: FrameType, _: str, __: Any) -> Any:
            return visit if frame.f_code.co_filename.startswith(self._folder) else None

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            return solution(*arguments)
        finally:
            sys.settrace(before)
            self._visited = list(seen)

    def _turn(self, line: int) -> _Place | None:
        """The place to pause at: the next from `line` on among those that were paused at least often."""
        count = len(self._visited)
        order = (self._visited[(line + step) % count] for step in range(count))
        return min(order, key=lambda place: self._paused[place], default=None)
