"""NaN everywhere, for a comparison in which NaN differs from nothing."""

import torch


def solution(tensor):
    return torch.full_like(tensor, float("nan"))
