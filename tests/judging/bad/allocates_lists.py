"""Fills all memory with Python objects."""


def solution(tensor):
    hoard = []
    while True:
        hoard.append([0.5] * 100_000)
