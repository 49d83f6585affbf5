"""CUDA backend: torch's symmetric memory, which maps the GPU buffers of all ranks, on one GPU or several.

barrier(c) uses torch's channel 2 c and signals channel 2 c + 1: torch keeps both in the same words of a
signal pad, where a signal that is still on its way would let a rank leave a barrier too early.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory
from torch.multiprocessing.reductions import StorageWeakRef

from pkb.records.errors import UsageError
from pkb.symm._handle import Handle
from pkb.symm._waiting import timeout_s

_ALIGNMENT_BYTES = 16


@dataclass
class Allocation:
    """One buffer of this rank, before and after its rendezvous."""

    num_bytes: int
    storage: StorageWeakRef
    group_name: str | None = None
    mapped: _SymmetricMemory | None = None
    """torch's side of the rendezvous; it keeps the memory alive, so it must go when the storage is gone."""

    def connect(self, tensor: torch.Tensor, group: dist.ProcessGroup) -> _SymmetricMemory:
        """Map the buffers of all ranks; collective.

        Args:
            tensor: any tensor on this buffer.
            group: the ranks that take part.
        """
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        with torch.cuda.device(tensor.device):
            self.mapped = symm_mem.rendezvous(raw, group)
        self.group_name = group.group_name
        return self.mapped


_allocations: dict[int, Allocation] = {}
"""This process's buffers by the address of their storage."""


def allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    """A new buffer of at least `num_bytes` bytes, as a uint8 tensor.

    Raises:
        UsageError: the GPU has no room.
    """
    _forget_freed()
    # Never empty: torch finds a buffer by its address, which an empty one has not.
    size_bytes = max(1, -(-num_bytes // _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES
    # Not symm_mem.empty: its pool hands freed memory out again, at a time that differs between ranks, and
    # torch would take the new buffer for the old one on some ranks and not on others.
    try:
        raw = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, device)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        free, total = torch.cuda.mem_get_info(device)
        raise UsageError(
            f"empty: no room for a symmetric buffer of {size_bytes} bytes ({device}: {free} of {total} bytes are free)."
            " Ask for less, or keep buffers instead of making new ones."
        ) from error
    storage = raw.untyped_storage()
    reference = StorageWeakRef(storage)
    _allocations[storage.data_ptr()] = Allocation(size_bytes, reference)
    return raw


def find(tensor: torch.Tensor) -> Allocation | None:
    """The buffer that a tensor lies on, or None if it is ordinary memory."""
    _forget_freed()
    return _allocations.get(tensor.untyped_storage().data_ptr())


def in_use() -> bool:
    """Whether this rank holds a buffer."""
    _forget_freed()
    return bool(_allocations)


def _forget_freed() -> None:
    for address, allocation in list(_allocations.items()):
        if allocation.storage.expired():
            del _allocations[address]


class CudaHandle(Handle):
    """Handle over torch's symmetric memory; barrier, signal and wait are kernels on the current stream."""

    def __init__(self, tensor: torch.Tensor, mapped: _SymmetricMemory) -> None:
        peers = [
            tensor if rank == mapped.rank else mapped.get_buffer(rank, tensor.shape, tensor.dtype)
            for rank in range(mapped.world_size)
        ]
        super().__init__(tensor, mapped.rank, peers)
        self._mapped = mapped

    @property
    def ptrs(self) -> tuple[int, ...]:
        """Address of each rank's buffer on this rank's GPU."""
        return tuple(self._mapped.buffer_ptrs)

    @property
    def signal_ptrs(self) -> tuple[int, ...]:
        """Address of each rank's signal pad on this rank's GPU."""
        return tuple(self._mapped.signal_pad_ptrs)

    @property
    def multicast_ptr(self) -> int:
        """torch's multicast pointer, 0 where NVLink SHARP is missing or turned off."""
        return int(self._mapped.multicast_ptr)

    def _barrier(self, channel: int) -> None:
        self._mapped.barrier(channel=2 * channel, timeout_ms=_timeout_ms())

    def _signal(self, peer: int, channel: int) -> None:
        self._mapped.put_signal(peer, channel=2 * channel + 1, timeout_ms=_timeout_ms())

    def _wait(self, peer: int, channel: int) -> None:
        self._mapped.wait_signal(peer, channel=2 * channel + 1, timeout_ms=_timeout_ms())


def _timeout_ms() -> int:
    # 0 would mean no limit.
    return max(1, round(timeout_s() * 1000))
