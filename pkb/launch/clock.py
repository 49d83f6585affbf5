"""The stream a rank works on: delays, waiting for it and timing it, on a GPU or on the CPU."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

import torch


class Stream(Protocol):
    """What a rank does with its device besides calling the candidate."""

    def delay(self, microseconds: int) -> None:
        """Keep the device busy, or on the CPU the rank, for about that long."""
        ...

    def occupy(self, microseconds: int) -> None:
        """Keep multiprocessors and memory of the device busy beside what comes next, for about that long."""
        ...

    def synchronize(self) -> None:
        """Wait until all work on the device has ended."""
        ...

    def evict(self) -> None:
        """Drive out of the device's caches what was just written, so that timed calls find their arguments cold."""
        ...

    def start(self) -> None:
        """Begin a measurement."""
        ...

    def stop(self) -> None:
        """End it in stream order."""
        ...

    def elapsed_us(self) -> float | None:
        """Device time between start and stop; None on the CPU, where the host clock is all there is."""
        ...


class CpuStream:
    """Work on the CPU is done when a call returns."""

    def delay(self, microseconds: int) -> None:
        """Sleep."""
        time.sleep(microseconds / 1e6)

    def occupy(self, microseconds: int) -> None:
        """Nothing: cores are shared with the other ranks anyway."""

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def evict(self) -> None:
        """Nothing: times on the CPU are for orientation."""

    def start(self) -> None:
        """The host clock is read by the caller."""

    def stop(self) -> None:
        """The host clock is read by the caller."""

    def elapsed_us(self) -> float | None:
        """None: there is no device clock."""
        return None


class CudaStream:
    """The current CUDA stream of this process."""

    # torch.cuda._sleep counts clock cycles; H100-class GPUs run near 1.9 GHz, and a delay need not be exact.
    _CYCLES_PER_US = 1900
    # Several times the L2 cache of any GPU of today.
    _EVICTING_BYTES = 256 * 1024**2
    _BALLAST_ELEMS = 1 << 24
    _PASS_US = 40
    """One pass over the ballast reads and writes 128 MiB; a rough figure is enough."""

    def __init__(self) -> None:
        self._beside: tuple[torch.cuda.Stream, torch.Tensor] | None = None
        """Stream and memory of the work that occupies the device."""
        self._begin: Any = torch.cuda.Event(enable_timing=True)
        self._end: Any = torch.cuda.Event(enable_timing=True)
        self._evicting: torch.Tensor | None = None
        self._driver = ctypes.CDLL("libcuda.so.1")

    def delay(self, microseconds: int) -> None:
        """Enqueue a kernel that spins."""
        if microseconds:
            torch.cuda._sleep(microseconds * self._CYCLES_PER_US)

    def occupy(self, microseconds: int) -> None:
        """Enqueue elementwise kernels on another stream, with blocks for all multiprocessors."""
        if not microseconds:
            return
        if self._beside is None:
            self._beside = torch.cuda.Stream(), torch.zeros(self._BALLAST_ELEMS, device="cuda")
        stream, ballast = self._beside
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(-(-microseconds // self._PASS_US)):
                ballast.sin_()

    def synchronize(self) -> None:
        """Wait for every stream, also for those that the candidate made."""
        torch.cuda.synchronize()

    def evict(self) -> None:
        """Write to more memory than the L2 cache holds, once no line of it is set aside to persist."""
        if self._evicting is None:
            self._evicting = torch.empty(self._EVICTING_BYTES, dtype=torch.uint8, device="cuda")
        # Its status tells nothing new: a GPU without persisting lines has none, and a broken context fails below.
        self._driver.cuCtxResetPersistingL2Cache()
        self._evicting.zero_()

    def start(self) -> None:
        """Record the first event."""
        self._begin.record()

    def stop(self) -> None:
        """Record the second event; work on other streams shows in the host clock, read after `synchronize`."""
        self._end.record()

    def elapsed_us(self) -> float | None:
        """Time between the events; call after `synchronize`."""
        return float(self._begin.elapsed_time(self._end)) * 1e3


def spin_until(monotonic_ns: int) -> None:
    """Wait for a moment on the machine's monotonic clock, to the microsecond."""
    while (left := monotonic_ns - time.monotonic_ns()) > 0:
        if left > 2_000_000:
            time.sleep((left - 1_000_000) / 1e9)
