"""The last rank skips a barrier, so that all others wait for it: a divergence."""

from pkb import symm

_HANDLES = {}


def handle_for(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in _HANDLES:
        _HANDLES[key] = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype))
    return _HANDLES[key]


def solution(tensor):
    handle = handle_for(tensor)
    handle.tensor.copy_(tensor)
    if handle.rank < handle.world_size - 1:
        handle.barrier()
        handle.barrier()
        handle.barrier()
    else:
        handle.barrier()
    return tensor.clone()
