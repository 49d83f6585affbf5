"""CPU buffers: one shared-memory file per buffer and rank, mapped by all ranks of a group.

A file has no name while it is allocated (O_TMPFILE). It gets an unguessable one when all ranks have met in
the rendezvous and loses it before any of them goes on, so a rank that is killed leaves nothing behind.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
import weakref

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from pkb.records.errors import UsageError
from pkb.symm._group import gather
from pkb.symm._handle import NUM_CHANNELS

MAX_RANKS = 64
NUM_KINDS = 3
"""Kinds of words in a signal pad; _host.py says which."""
PAD_BYTES = 8 * NUM_KINDS * NUM_CHANNELS * MAX_RANKS
"""Size of the signal pad in front of the data: whole pages, so that data starts on one."""


class Segment(mmap.mmap):
    """The mapped file of one rank's buffer: signal pad, then data. Lives as long as tensors on it do."""

    directory: str
    """Where the file was made, and where its name goes for a moment; own buffers only."""
    fd: int
    """Open until the rendezvous; own buffers only."""
    close_fd: weakref.finalize[[int], Segment]
    group_name: str | None = None
    peers: tuple[Segment | None, ...] = ()
    """After the rendezvous, all ranks' segments; None for the own one, which must not keep itself alive."""

    @property
    def num_bytes(self) -> int:
        """Bytes of data."""
        return len(self) - PAD_BYTES

    def data(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The data as a tensor that starts where they start."""
        raw = torch.frombuffer(self, dtype=torch.uint8, offset=PAD_BYTES)
        num_elems = int(np.prod(shape, dtype=np.int64))
        return raw[: num_elems * dtype.itemsize].view(dtype).view(shape)

    def pad(self) -> npt.NDArray[np.int64]:
        """The signal pad as words [kind, channel, rank]."""
        words = np.frombuffer(self, dtype=np.int64, count=PAD_BYTES // 8)
        return words.reshape(NUM_KINDS, NUM_CHANNELS, MAX_RANKS)

    def connect(self, group: dist.ProcessGroup) -> None:
        """Map the segments of all ranks; collective.

        Raises:
            UsageError: on every rank alike, when one of them cannot share its file or open a peer's.
        """
        world_size, rank = dist.get_world_size(group), dist.get_rank(group)
        if world_size > MAX_RANKS:
            raise UsageError(f"rendezvous: the group has {world_size} ranks; on the CPU at most {MAX_RANKS} work.")
        path, problem = "", ""
        try:
            path = self._publish()
        except OSError as error:
            problem = f"cannot give its buffer a name in {self.directory} ({error.strerror})"
        try:
            published = gather((path, problem), group)
            _require_none([problem for _, problem in published])
            peers: list[Segment | None] = []
            try:
                for peer, (peer_path, _) in enumerate(published):
                    peers.append(None if peer == rank else _open(peer_path, len(self)))
            except OSError as error:
                problem = f"cannot map rank {len(peers)}'s buffer ({error.strerror})"
            _require_none(gather(problem, group))
        finally:
            if path:
                os.unlink(path)
        self.close_fd()
        self.group_name, self.peers = group.group_name, tuple(peers)

    def _publish(self) -> str:
        """Give the file a name and return it."""
        path = os.path.join(self.directory, f"pkb-symm-{secrets.token_hex(16)}")
        # The path is absolute: the descriptor only makes Python call linkat, which can follow the link.
        os.link(f"/proc/self/fd/{self.fd}", path, src_dir_fd=self.fd, follow_symlinks=True)
        return path


def create(num_bytes: int) -> Segment:
    """Allocate a segment for `num_bytes` bytes of data, zeroed, in /dev/shm or the temporary directory.

    Raises:
        UsageError: neither has room.
    """
    size_bytes = PAD_BYTES + max(1, num_bytes)
    reasons = []
    for directory in dict.fromkeys(("/dev/shm", tempfile.gettempdir())):
        try:
            return _create_in(directory, size_bytes)
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror}")
    raise UsageError(
        f"empty: no room for a symmetric buffer of {size_bytes} bytes ({'; '.join(reasons)})."
        " Free some there, or make /dev/shm larger (docker run --shm-size)."
    )


def _create_in(directory: str, size_bytes: int) -> Segment:
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        # Reserves the memory now: on a full /dev/shm a mere ftruncate leads to SIGBUS at the first write.
        os.posix_fallocate(fd, 0, size_bytes)
        segment = Segment(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    segment.directory, segment.fd = directory, fd
    segment.close_fd = weakref.finalize(segment, os.close, fd)
    return segment


def _open(path: str, size_bytes: int) -> Segment:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return Segment(fd, size_bytes)
    finally:
        os.close(fd)


def _require_none(problems: list[str]) -> None:
    for rank, problem in enumerate(problems):
        if problem:
            raise UsageError(
                f"rendezvous: rank {rank} {problem}. Ranks that share CPU memory must run on one machine,"
                " as one user, and see the same /dev/shm."
            )
