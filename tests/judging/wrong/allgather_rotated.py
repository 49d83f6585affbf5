"""Puts the own tensor first, so the slices are rotated by the rank."""

import torch
import torch.distributed as dist


def solution(tensor):
    world_size = dist.get_world_size()
    result = tensor.new_empty((world_size, *tensor.shape))
    dist.all_gather_into_tensor(result.view(-1), tensor.reshape(-1))
    return torch.roll(result, -dist.get_rank(), dims=0)
