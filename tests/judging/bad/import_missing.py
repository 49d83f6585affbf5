"""Imports what is not installed."""

import a_module_that_nobody_has  # type: ignore[import-not-found]


def solution(tensor):
    return a_module_that_nobody_has.sum(tensor)
