"""Returns the block of the next rank."""

import torch.distributed as dist


def solution(tensor):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    total = tensor.clone()
    dist.all_reduce(total)
    rows = tensor.shape[0] // world_size
    block = (rank + 1) % world_size
    return total[block * rows : (block + 1) * rows].clone()
