"""All-gather by copies out of the peers' buffers: nothing but moves, no arithmetic of torch."""

import torch
import torch.distributed as dist

from pkb import symm

handles = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in handles:
        handles[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype))
    handle = handles[key]
    handle.tensor.copy_(tensor)
    handle.barrier()
    out = torch.empty((dist.get_world_size(), *tensor.shape), dtype=tensor.dtype)
    for rank in range(handle.world_size):
        out[rank].copy_(handle.peer(rank))
    handle.barrier()
    dist.barrier()
    return out
