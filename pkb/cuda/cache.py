"""The folder for everything built on this machine, and the locks that let many ranks share it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pkb.records.errors import UsageError


def cache_dir(*parts: str) -> Path:
    """A folder below the cache root (`PKB_CACHE_DIR`, or `~/.cache/pkb`), made if it is missing.

    Raises:
        UsageError: the folder cannot be made.
    """
    given = os.environ.get("PKB_CACHE_DIR")
    root = Path(given).expanduser() if given else Path.home() / ".cache" / "pkb"
    folder = root.joinpath(*parts).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot make the cache folder ({error.strerror}). Set PKB_CACHE_DIR to a writable folder."
        ) from error
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file at `path` exclusively, among processes and threads; waits for whoever holds it.

    The kernel frees the lock when its holder dies, so a killed builder blocks nobody. The file stays: unlinking
    it would let a waiter and a newcomer hold two different files of the same name.
    """
    try:
        handle = path.open("a")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot open the lock file ({error.strerror}). Set PKB_CACHE_DIR to a writable folder."
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or the old one, also when the writer is killed."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
