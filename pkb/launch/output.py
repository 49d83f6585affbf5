"""What ranks print: read all the time so that nobody blocks on a full pipe, and only its end kept."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque

_KEEP_BYTES = 16 * 1024
_CHUNK_BYTES = 1 << 16


class OutputTail:
    """Drains pipes in a thread of its own and remembers the last bytes of each."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._tails: dict[str, deque[bytes]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="pkb-output", daemon=True)
        self._thread.start()

    def open_pipe(self, name: str) -> int:
        """A descriptor to write to; the caller closes it. What is written appears under `name`."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        with self._lock:
            self._tails[name] = deque(maxlen=_KEEP_BYTES)
        self._selector.register(read_fd, selectors.EVENT_READ, name)
        os.write(self._wake_write, b"+")
        return write_fd

    def text(self) -> str:
        """The end of what each printed, under its name; empty when nobody printed."""
        with self._lock:
            tails = {name: bytes(b"".join(tail)) for name, tail in self._tails.items()}
        parts = [f"[{name}]\n{tail.decode(errors='replace').rstrip()}" for name, tail in tails.items() if tail]
        return "\n".join(parts)

    def close(self) -> None:
        """Stop reading and close all pipes."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        os.close(self._wake_write)

    def _drain(self) -> None:
        while True:
            for key, _ in self._selector.select():
                data = os.read(key.fd, _CHUNK_BYTES)
                if key.data is None:
                    if b"x" in data:
                        return
                elif data:
                    self._keep(key.data, data)
                else:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)

    def _keep(self, name: str, data: bytes) -> None:
        with self._lock:
            tail = self._tails[name]
            tail.extend(data[i : i + 1] for i in range(max(0, len(data) - _KEEP_BYTES), len(data)))
