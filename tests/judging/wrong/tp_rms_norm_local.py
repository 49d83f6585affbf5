"""Normalizes by the mean square of the own columns instead of all ranks'."""

import torch


def solution(local_hidden_states, local_weight, variance_epsilon):
    x = local_hidden_states.float()
    variance = x.pow(2).mean(-1, keepdim=True)
    return local_weight * (x * torch.rsqrt(variance + variance_epsilon)).to(local_hidden_states.dtype)
