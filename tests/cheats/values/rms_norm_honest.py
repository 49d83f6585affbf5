"""RMSNorm over columns of all ranks."""

import torch
import torch.distributed as dist


def solution(local_hidden_states, local_weight, variance_epsilon):
    hidden = local_hidden_states.float()
    squares = hidden.square().sum(dim=-1, keepdim=True)
    dist.all_reduce(squares)
    variance = squares / (hidden.shape[-1] * dist.get_world_size())
    return local_weight * (hidden * torch.rsqrt(variance + variance_epsilon)).to(local_hidden_states.dtype)
