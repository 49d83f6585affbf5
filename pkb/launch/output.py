"""What ranks print: read all the time so that nobody blocks on a full pipe, and only its end kept."""

from __future__ import annotations

import os
import selectors
import threading

_KEEP_BYTES = 16 * 1024
_CHUNK_BYTES = 1 << 16
_MAX_LAST_CHUNKS = 64
"""How much `text` reads by itself of what is still in a pipe; a process may print without end."""


class OutputTail:
    """Drains pipes in a thread of its own and remembers the last bytes of each."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._tails: dict[str, bytearray] = {}
        self._pipes: dict[int, str] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="pkb-output", daemon=True)
        self._thread.start()

    def open_pipe(self, name: str) -> int:
        """A descriptor to write to; the caller closes it. What is written appears under `name`."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        with self._lock:
            self._tails[name] = bytearray()
            self._pipes[read_fd] = name
            self._selector.register(read_fd, selectors.EVENT_READ, name)
        os.write(self._wake_write, b"+")
        return write_fd

    def text(self) -> str:
        """The end of what each has printed so far, under its name; empty when nobody printed."""
        with self._lock:
            # What a process printed right before it ended may not have reached the thread yet.
            for fd in list(self._pipes):
                for _ in range(_MAX_LAST_CHUNKS):
                    if not self._read(fd):
                        break
            tails = {name: bytes(tail) for name, tail in self._tails.items() if tail}
        parts = [f"[{name}]\n{tail.decode(errors='replace').rstrip()}" for name, tail in tails.items()]
        return "\n".join(parts)

    def close(self) -> None:
        """Stop reading and close all pipes."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        for fd in (*self._pipes, self._wake_read, self._wake_write):
            os.close(fd)
        self._selector.close()

    def _drain(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    with self._lock:
                        if key.fd in self._pipes:
                            self._read(key.fd)
                elif b"x" in os.read(self._wake_read, _CHUNK_BYTES):
                    return

    def _read(self, fd: int) -> bool:
        """Take in one chunk of a pipe, closing it at its end; False when nothing was there."""
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(fd)
            del self._pipes[fd]
            os.close(fd)
            return False
        tail = self._tails[self._pipes[fd]]
        tail += data
        del tail[:-_KEEP_BYTES]
        return True
