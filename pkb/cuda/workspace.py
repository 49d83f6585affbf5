"""Symmetric memory of a solution's kernels: made once per key and group, signals zeroed, kept for later calls."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from pkb import symm
from pkb.cuda.arguments import peers

# kExchangeThreads, kMaxBlocks and kSignalBytes of exchange.cuh.
EXCHANGE_THREADS = 512
MAX_BLOCKS = 128
SIGNAL_BYTES = MAX_BLOCKS * 64
PACK_BYTES = 16

_UNITS = {16: "uint4", 8: "unsigned long long", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}
UNIT_TYPES = tuple(_UNITS.values())
"""C types of the widths that `unit_of` chooses from."""


@dataclass(frozen=True)
class Workspace:
    """One symmetric buffer: `SIGNAL_BYTES` of signals, then what was asked for."""

    memory: torch.Tensor
    handle: symm.Handle | None
    """None for one rank alone."""
    peers: ctypes.Array[ctypes.c_uint64]
    rank: np.int32
    world_size: np.int32


class Workspaces:
    """The symmetric buffers of one solution.

    Making one is collective and slow; every later call with the same key and group gets the same one.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Hashable, dist.ProcessGroup | None], Workspace] = {}

    def get(
        self, key: Hashable, num_bytes: int, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> Workspace:
        """The buffer for `key`, made in the first call with it.

        Args:
            key: what the size and the use of the buffer depend on, such as shape and dtype; equal on all ranks.
            num_bytes: bytes behind the signals.
            device: the GPU of this rank.
            group: the ranks that take part; None stands for the default group.

        Raises:
            UsageError: there is no room, or the ranks ask for different sizes.
            ValueError: the group has more ranks than kernels have room for.
        """
        whole = (key, dist.group.WORLD if group is None else group)
        found = self._made.get(whole)
        if found is None:
            found = self._made[whole] = _make(num_bytes, device, group)
        return found


def _make(num_bytes: int, device: torch.device, group: dist.ProcessGroup | None) -> Workspace:
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        # Nobody to share it with, so that a kernel needs no special case for one rank, nor a process group.
        alone = torch.zeros(SIGNAL_BYTES + num_bytes, dtype=torch.uint8, device=device)
        return Workspace(alone, None, peers([alone.data_ptr()]), np.int32(0), np.int32(1))
    memory = symm.empty((SIGNAL_BYTES + num_bytes,), dtype=torch.uint8, device=device)
    memory[:SIGNAL_BYTES].zero_()
    handle = symm.rendezvous(memory, group)
    # No rank may be signaled before it has zeroed its signals.
    handle.barrier()
    return Workspace(memory, handle, peers(handle.ptrs), np.int32(handle.rank), np.int32(handle.world_size))


def grid_blocks(num_items: int, device: torch.device, items_per_block: int = EXCHANGE_THREADS) -> int:
    """Blocks for a kernel whose blocks must all be resident: at most one an SM, and no more than there is work for.

    Args:
        num_items: of all blocks together; equal on all ranks, since grids must be.
        device: the GPU of this rank.
        items_per_block: what one block handles at a time, one a thread by default.
    """
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(MAX_BLOCKS, num_sms, -(-num_items // items_per_block)))


def unit_of(byte_counts: Sequence[int]) -> tuple[int, str]:
    """Width in bytes and C type of the widest unit, up to 16 bytes, that divides all of `byte_counts`."""
    width = next(width for width in _UNITS if all(count % width == 0 for count in byte_counts))
    return width, _UNITS[width]


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is contiguous and starts on a 16-byte boundary, else a copy that does."""
    source = tensor.contiguous()
    return source if source.data_ptr() % PACK_BYTES == 0 else source.clone()


def rows_per_tile(row_packs: int, num_warps: int) -> int:
    """Rows that a block of `num_warps` warps (a power of two) handles at a time, each by as many warps as it fills.

    Args:
        row_packs: packs of 16 bytes in a row.
        num_warps: of a block.
    """
    # Four packs a thread keep enough loads in flight.
    warps_a_row = 1
    while warps_a_row < num_warps and warps_a_row * 32 * 4 < row_packs:
        warps_a_row *= 2
    return num_warps // warps_a_row
