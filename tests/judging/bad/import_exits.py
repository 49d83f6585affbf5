"""Calls sys.exit while it is imported."""

import sys

sys.exit(0)


def solution(tensor):
    return tensor
