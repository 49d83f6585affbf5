"""Rank 0 waits without bound for a word that nobody writes."""

import torch.distributed as dist


def solution(tensor):
    flag = [0]
    while dist.get_rank() == 0 and flag[0] == 0:
        pass
    return tensor.clone()
