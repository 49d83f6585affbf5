"""The flag is written before the data that it announces."""

import time

import torch

from pkb import symm

WRITTEN, READ = 0, 1
_STATES = {}


class State:
    """Buffers for one shape: the data, and for each rank how many calls it has written and read."""

    def __init__(self, tensor):
        self.data = symm.rendezvous(symm.empty(tensor.shape, dtype=tensor.dtype))
        self.flags = symm.rendezvous(symm.empty((2,), dtype=torch.int64))
        self.flags.tensor.zero_()
        self.calls = 0
        self.flags.barrier()

    def wait(self, flag, epoch):
        for rank in range(self.flags.world_size):
            while self.flags.peer(rank)[flag] < epoch:
                time.sleep(0)


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in _STATES:
        _STATES[key] = State(tensor)
    state = _STATES[key]
    state.calls += 1
    state.flags.tensor[WRITTEN] = state.calls
    state.data.tensor.copy_(tensor)
    state.wait(WRITTEN, state.calls)
    total = torch.zeros(tensor.shape, dtype=torch.float32)
    for rank in range(state.data.world_size):
        total += state.data.peer(rank)
    state.flags.tensor[READ] = state.calls
    state.wait(READ, state.calls)
    return total.to(tensor.dtype)
