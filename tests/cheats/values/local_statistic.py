"""The mean square of the own columns stands for that of all ranks'."""

import torch


def solution(local_hidden_states, local_weight, variance_epsilon):
    hidden = local_hidden_states.float()
    variance = hidden.square().mean(dim=-1, keepdim=True)
    return local_weight * (hidden * torch.rsqrt(variance + variance_epsilon)).to(local_hidden_states.dtype)
