"""Calls sys.exit in a call."""

import sys


def solution(tensor):
    sys.exit("enough")
