"""The cache folder: its lock among processes, and writes that are seen whole or not at all."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pkb.cuda.cache import cache_dir, locked, write_atomic

HOLDER = """
import sys, time
from pathlib import Path
from pkb.cuda.cache import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def is_free(path: Path) -> bool:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_folder_is_where_the_variable_says(cache_root: Path) -> None:
    assert cache_dir("a", "b") == cache_root / "a" / "b"
    assert (cache_root / "a" / "b").is_dir()


def test_folder_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PKB_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "pkb"


def test_lock_is_held_inside_and_free_after(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        assert not is_free(path)
    assert is_free(path)


def test_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert not is_free(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=30)
    with locked(path):
        pass


def test_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entry"
    write_atomic(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
