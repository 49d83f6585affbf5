"""Raises while it is imported, with a cause."""

print("about to look up the device")
try:
    {}["device"]
except KeyError as error:
    raise RuntimeError("no such device") from error


def solution(tensor):
    return tensor
