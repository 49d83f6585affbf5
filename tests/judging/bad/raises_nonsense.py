"""Raises an exception that cannot be shown, after one with a message without end."""


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


def solution(tensor):
    try:
        raise ValueError("x" * 50_000_000)
    except ValueError as error:
        raise Broken from error
