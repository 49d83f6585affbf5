"""Needs a keyword that nobody passes, behind a name that only the import shows."""


def sum_of_all(tensor, *, group):
    return tensor


solution = sum_of_all
