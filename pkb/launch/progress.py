"""A page of memory in which a rank says where it is, readable by the judge when the rank answers no more."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from enum import IntEnum

_WORDS = struct.Struct("<qq")


class State(IntEnum):
    """Where a rank is."""

    IDLE = 0
    SETTING_UP = 1
    PREPARING = 2
    LOADING = 3
    IN_CALL = 4
    RETURNED = 5
    WAITING_FOR_DEVICE = 6


_TEXTS = {
    State.IDLE: "waiting for the judge",
    State.SETTING_UP: "joining the process group",
    State.PREPARING: "making inputs",
    State.LOADING: "importing the solution",
    State.IN_CALL: "inside call {call}",
    State.RETURNED: "returned from call {call}",
    State.WAITING_FOR_DEVICE: "returned from call {call}, waiting for the device",
}


class ProgressPage:
    """Two words shared by the judge and one rank: state and number of the call."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _WORDS.size)

    @staticmethod
    def create() -> int:
        """A descriptor of a fresh page; memory that vanishes with its last holder."""
        fd = os.memfd_create("pkb-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _WORDS.size)
        # A page that a rank had cut off would end the judge with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd

    def set(self, state: State, call: int = 0) -> None:
        """Say where this rank is."""
        _WORDS.pack_into(self._page, 0, int(state), call)

    def text(self) -> str:
        """Where the rank is, in words; calls are numbered from 0."""
        state, call = _WORDS.unpack_from(self._page, 0)
        try:
            return _TEXTS[State(state)].format(call=call)
        except ValueError:
            return "unknown: the rank overwrote its progress page"

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
