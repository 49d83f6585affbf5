"""CPU backend: shared memory between rank processes, with barriers and signals in plain Python.

Python has no atomic operations. This relies on three facts instead, and `allocate` refuses machines without
them:
- A word of a signal pad is an aligned int64, which numpy reads and writes with one move instruction: never
  torn.
- x86-64 keeps total store order: stores become visible in program order, loads are done in program order,
  and no store overtakes an earlier load. So a plain store publishes all earlier writes and reads, and a
  plain load that sees it acquires them. No step here needs a store to be visible before a later load, the
  one thing x86-64 reorders.
- Every word has a single writing rank and only ever grows, so nothing is reset and nothing can be lost.
Other architectures would need fences, which Python cannot express.
"""

from __future__ import annotations

import platform
import weakref

import torch

from pkb.records.errors import UsageError
from pkb.symm._handle import Handle
from pkb.symm._segment import PAD_BYTES, Segment, create
from pkb.symm._waiting import spin_until, timeout_s

_ARRIVED = 0
"""pad[_ARRIVED, channel, r]: epoch of the last barrier at which rank r arrived; written by r in every pad."""
_SENT = 1
"""pad[_SENT, channel, r]: how many signals rank r has sent to the pad's owner; written by r."""
_TAKEN = 2
"""pad[_TAKEN, channel, r]: how many signals of the pad's owner rank r has taken; written by r."""

_segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
"""This process's own segments by the address of their data."""


def allocate(num_bytes: int) -> torch.Tensor:
    """A new buffer of at least `num_bytes` bytes, as a uint8 tensor.

    Raises:
        UsageError: there is no room, or this machine's memory order is not the one relied on here.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UsageError(
            f"empty: symmetric memory on the CPU needs x86-64, this machine is {platform.machine()}."
            " Use device='cuda' here."
        )
    segment = create(num_bytes)
    raw = segment.data((segment.num_bytes,), torch.uint8)
    _segments[raw.untyped_storage().data_ptr()] = segment
    return raw


def find(tensor: torch.Tensor) -> Segment | None:
    """The segment that a tensor lies on, or None if it is ordinary memory."""
    return _segments.get(tensor.untyped_storage().data_ptr())


def in_use() -> bool:
    """Whether this rank holds a buffer."""
    return bool(_segments)


class HostHandle(Handle):
    """Handle over mapped segments; barrier, signal and wait block."""

    def __init__(self, tensor: torch.Tensor, own: Segment) -> None:
        segments = [own if segment is None else segment for segment in own.peers]
        shape = tuple(tensor.shape)
        peers = [tensor if segment is own else segment.data(shape, tensor.dtype) for segment in segments]
        super().__init__(tensor, own.peers.index(None), peers)
        self._pads = [segment.pad() for segment in segments]
        self._own_pad = self._pads[self.rank]

    @property
    def ptrs(self) -> tuple[int, ...]:
        """Address of each rank's data in this process."""
        return tuple(address + PAD_BYTES for address in self.signal_ptrs)

    @property
    def signal_ptrs(self) -> tuple[int, ...]:
        """Address of each rank's signal pad in this process."""
        return tuple(pad.ctypes.data for pad in self._pads)

    @property
    def multicast_ptr(self) -> int:
        """0: the CPU has no multicast."""
        return 0

    def _barrier(self, channel: int) -> None:
        arrived = self._own_pad[_ARRIVED, channel]
        epoch = arrived.item(self.rank) + 1
        for pad in self._pads:
            pad[_ARRIVED, channel, self.rank] = epoch
        missing = list(range(self.world_size))

        def all_arrived() -> bool:
            # A peer may be one epoch ahead already, hence no test for equality.
            missing[:] = [rank for rank in missing if arrived.item(rank) < epoch]
            return not missing

        def late() -> str:
            who = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {str(missing)[1:-1]} have"
            seen = [arrived.item(rank) for rank in missing]
            return self._late("barrier", channel, f"{who} not arrived", epoch, str(seen)[1:-1])

        spin_until(all_arrived, late)

    def _signal(self, peer: int, channel: int) -> None:
        sent, taken = self._pads[peer][_SENT, channel], self._own_pad[_TAKEN, channel]
        num_sent = sent.item(self.rank)
        spin_until(
            lambda: taken.item(peer) >= num_sent,
            lambda: self._late(
                "signal", channel, f"rank {peer} has not taken the last one", num_sent, str(taken.item(peer))
            ),
        )
        sent[self.rank] = num_sent + 1

    def _wait(self, peer: int, channel: int) -> None:
        sent, taken = self._own_pad[_SENT, channel], self._pads[peer][_TAKEN, channel]
        epoch = taken.item(self.rank) + 1
        spin_until(
            lambda: sent.item(peer) >= epoch,
            lambda: self._late("wait", channel, f"rank {peer} has not signaled", epoch, str(sent.item(peer))),
        )
        taken[self.rank] = epoch

    def _late(self, what: str, channel: int, why: str, expected: int, seen: str) -> str:
        return (
            f"{what} on channel {channel} timed out after {timeout_s():g} s on rank {self.rank} of"
            f" {self.world_size}: {why} (expected epoch {expected}, seen {seen})."
        )
