"""Portable symmetric memory: one buffer per rank that every rank can read and write.

On CUDA this is torch's symmetric memory, on the CPU shared memory between the rank processes, so one
solution in plain torch ops runs on both. Needs torch.distributed to be initialized; knows nothing of
problems or judging.
"""

from pkb.symm._api import empty, in_use, rendezvous
from pkb.symm._handle import NUM_CHANNELS, Handle
from pkb.symm._waiting import set_after_barrier, set_timeout

__all__ = [
    "NUM_CHANNELS",
    "Handle",
    "empty",
    "in_use",
    "rendezvous",
    "set_after_barrier",
    "set_timeout",
]
