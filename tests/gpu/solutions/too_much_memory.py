"""Asks for more memory than any GPU has."""

import torch


def solution(tensor):
    return torch.empty(1 << 50, dtype=torch.uint8, device=tensor.device)
