"""Defines a function of another name."""


def answer(tensor):
    return tensor
