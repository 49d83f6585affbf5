"""Adds the buffers of ranks 0 and 1, however many ranks there are."""

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
    handle.barrier()
    total = handle.peer(0).float() + handle.peer(1).float()
    handle.barrier()
    return total.to(tensor.dtype)
