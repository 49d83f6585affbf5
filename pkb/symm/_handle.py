"""What a rank holds after a rendezvous, whichever the backend: views of all buffers, barrier, signals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from pkb.records.errors import UsageError
from pkb.symm._waiting import call_after_barrier

NUM_CHANNELS = 16
"""Channels of one buffer, 0 to 15, for barriers and again for signals; each is independent of the others."""


class Handle(ABC):
    """A symmetric buffer as seen by one rank. Made by `rendezvous`; ranks are those of its group.

    One thread at a time may use a channel.
    """

    def __init__(self, tensor: torch.Tensor, rank: int, peers: Sequence[torch.Tensor]) -> None:
        self._tensor = tensor
        self._rank = rank
        self._peers = tuple(peers)

    def __repr__(self) -> str:
        shape, dtype = list(self._tensor.shape), self._tensor.dtype
        return f"Handle(rank {self.rank} of {self.world_size}, {shape} {dtype} on {self._tensor.device})"

    @property
    def tensor(self) -> torch.Tensor:
        """This rank's buffer, as given to `rendezvous`."""
        return self._tensor

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return len(self._peers)

    @property
    @abstractmethod
    def ptrs(self) -> tuple[int, ...]:
        """Address of each rank's buffer, valid in this process (and on this rank's GPU)."""

    @property
    @abstractmethod
    def signal_ptrs(self) -> tuple[int, ...]:
        """Address of each rank's signal pad, valid in this process (layout: docs/symmetric-memory.md)."""

    @property
    @abstractmethod
    def multicast_ptr(self) -> int:
        """Address that stands for all ranks' buffers; 0 when unavailable."""

    def peer(self, rank: int) -> torch.Tensor:
        """A view of a rank's buffer, of the same shape and dtype; for the own rank the own buffer.

        Raises:
            UsageError: no such rank is in the group.
        """
        self._require_rank(rank)
        return self._peers[rank]

    def barrier(self, channel: int = 0) -> None:
        """All ranks arrive before any leaves; what they wrote before is visible to all after.

        On CUDA this is enqueued on the current stream and orders the work on it; on the CPU it blocks.

        Raises:
            UsageError: no such channel.
            TimeoutError: (CPU) a rank has not arrived in time; the message names it.
        """
        _require_channel(channel)
        self._barrier(channel)
        call_after_barrier()

    def signal(self, peer: int, channel: int = 0) -> None:
        """Publish this rank's earlier writes and send one signal to `peer`.

        A signal is one bit: while the last one to that peer on that channel is not yet taken by `wait`,
        this waits.

        Raises:
            UsageError: no such rank or channel.
            TimeoutError: (CPU) the last signal was not taken in time.
        """
        self._require_rank(peer)
        _require_channel(channel)
        self._signal(peer, channel)

    def wait(self, peer: int, channel: int = 0) -> None:
        """Wait for the next signal from `peer`, take it, and see what it published; n signals match n waits.

        Raises:
            UsageError: no such rank or channel.
            TimeoutError: (CPU) no signal came in time.
        """
        self._require_rank(peer)
        _require_channel(channel)
        self._wait(peer, channel)
        call_after_barrier()

    @abstractmethod
    def _barrier(self, channel: int) -> None: ...

    @abstractmethod
    def _signal(self, peer: int, channel: int) -> None: ...

    @abstractmethod
    def _wait(self, peer: int, channel: int) -> None: ...

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise UsageError(
                f"peer rank {rank} is out of range: the group has {self.world_size} ranks, 0 to {self.world_size - 1}."
            )


def _require_channel(channel: int) -> None:
    if not 0 <= channel < NUM_CHANNELS:
        raise UsageError(f"channel {channel} is out of range: channels are 0 to {NUM_CHANNELS - 1}.")
