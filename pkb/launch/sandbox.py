"""What keeps a candidate's processes apart from this machine and from other candidates.

Three steps, each taken once:

    enter()        the nursery, before anything else: a user namespace of its own, in which it may make others,
                   and network and IPC namespaces; only loopback is there.
    RankBox        one for each set of ranks: a process namespace and a view of the files in which everything is
                   read-only but an empty /tmp and /dev/shm in memory. Its init process ends all others with it.
    seal()         a rank, after its arguments are made and before it loads the candidate: covers what the
                   candidate must not see and gives up every capability, so that nothing can be uncovered.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pkb.launch import namespaces

WORK_FOLDER = "/tmp/work"
"""Where ranks of a box start, and meet."""
LAYERS = ("files", "processes", "network", "ipc")
"""What a full sandbox separates; in the words of `Verdict.isolation`."""

_MAX_PROCESSES = 4096
_COVERED = ("/run", "/var/tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "infiniband")
_READY = b"+"


def enter() -> None:
    """Move this process, which must have one thread, into namespaces of its own.

    Raises:
        OSError: the system does not allow it; the process may be half way in, so try in a fork first.
    """
    # The map of all users can only be written from outside, and only root may.
    everyone = os.geteuid() == 0
    wait_read, wait_write = os.pipe()
    us = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        _map_for(us, wait_read, wait_write, everyone)
    os.close(wait_read)
    try:
        namespaces.unshare(namespaces.NEW_USER | namespaces.NEW_FILES | namespaces.NEW_NETWORK | namespaces.NEW_IPC)
        os.write(wait_write, _READY)
    finally:
        os.close(wait_write)
        _, status = os.waitpid(mapper, 0)
    if status != 0:
        raise OSError(f"users could not be mapped into a user namespace (as uid {os.geteuid()})")
    namespaces.keep_mounts_to_ourselves()
    namespaces.raise_loopback()
    with suppress(OSError):
        # No process in here needs a further one, in which it would have all capabilities again. A /proc that is
        # read-only, as in some containers, leaves it possible; what is covered stays covered there, too.
        Path("/proc/sys/user/max_user_namespaces").write_text("0")


def probe() -> str:
    """Why this process cannot be put into a sandbox; empty when it can. Tries all steps in a fork."""
    reason_read, reason_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reason_read)
        _try_all_steps(reason_write)
    os.close(reason_write)
    with os.fdopen(reason_read) as pipe:
        reason = pipe.read()
    _, status = os.waitpid(child, 0)
    return reason or (f"a trial ended with status {status}" if status != 0 else "")


def folders_of_python() -> list[str]:
    """Folders that this interpreter imports from and that a box would cover."""
    used = {os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path}
    covered = tuple(f"{path}/" for path in ("/tmp", *_COVERED))
    return sorted(path for path in used if path.startswith(covered) and os.path.isdir(path))


class RankBox:
    """The namespaces of one set of ranks, held open by an init process that does nothing but collect orphans."""

    def __init__(self, kept: Sequence[str] = ()) -> None:
        """Make the namespaces; the calling process must have called `enter`, and be a subreaper.

        Args:
            kept: folders, outer before inner ones, that stay visible even below a folder that is covered.

        Raises:
            OSError: the system does not allow it.
        """
        ready_read, ready_write = os.pipe()
        self.pid = _fork_through(lambda: namespaces.unshare(namespaces.NEW_PROCESSES))
        if self.pid == 0:
            os.close(ready_read)
            _be_init(ready_write, kept)
        os.close(ready_write)
        with os.fdopen(ready_read) as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(self.pid, 0)
            raise OSError(failure)
        self._processes = os.open(f"/proc/{self.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._files = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """Fork this process into the box; returns 0 in the child, which still has to call `move_in`."""
        return _fork_through(lambda: namespaces.join(self._processes, namespaces.NEW_PROCESSES))

    def move_in(self) -> None:
        """In the child: see the box's files, by mounts that no other rank shares."""
        namespaces.join(self._files, namespaces.NEW_FILES)
        namespaces.unshare(namespaces.NEW_FILES)
        namespaces.keep_mounts_to_ourselves()
        self.close()

    def end(self) -> None:
        """Kill the init process, and with it every process of the box; the caller collects them."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Let go of the namespaces."""
        os.close(self._processes)
        os.close(self._files)


def seal(hidden: Sequence[str], folder: str, files: Mapping[str, str], cache: str) -> None:
    """Cover what a candidate must not see, and give up every right to uncover it.

    Args:
        hidden: folders that appear empty from now on.
        folder: where the candidate's files lie for everyone else.
        files: names relative to `folder`, and contents; written where the folder is not visible here.
        cache: the only folder outside of /tmp and /dev/shm that stays writable.

    Raises:
        OSError: the system does not allow it.
    """
    held = namespaces.hold(cache)
    covered = [*(path for path in hidden if os.path.isdir(path)), str(Path(cache).parent)]
    for path in covered:
        namespaces.mount_memory(path, mode="755", size="16m")
    _write_missing(folder, files)
    os.makedirs(cache, exist_ok=True)
    namespaces.place(held, cache)
    for path in covered:
        namespaces.set_writable(path, False)
    namespaces.set_writable(cache, True)
    namespaces.set_writable("/proc", False)
    namespaces.drop_capabilities()


def _fork_through(enter_namespace: Callable[[], None]) -> int:
    """Fork a child of this process into a namespace that this process may not go to and come back from.

    A helper goes there, forks and ends; what it leaves behind falls to this process, which is a subreaper.
    """
    answer_read, answer_write = os.pipe()
    gate_read, gate_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            enter_namespace()
            child = os.fork()
        except OSError as error:
            os.write(answer_write, f"!{error}".encode())
            os._exit(1)
        if child:
            os.write(answer_write, str(child).encode())
            os._exit(0)
        for fd in (answer_read, answer_write, gate_write):
            os.close(fd)
        # Until the helper has ended it is the parent, and what is tied to the parent's life would end with it.
        os.read(gate_read, 1)
        os.close(gate_read)
        return 0
    os.close(answer_write)
    os.close(gate_read)
    with os.fdopen(answer_read) as pipe:
        answer = pipe.read()
    os.waitpid(helper, 0)
    os.close(gate_write)
    if not answer.isdigit():
        raise OSError(answer.removeprefix("!") or "the process that was to fork a rank ended")
    return int(answer)


def _write_missing(folder: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                file.write(text)


def _map_for(pid: int, wait_read: int, wait_write: int, everyone: bool) -> NoReturn:
    """Write the maps of a process once it is in its user namespace; runs in a fork outside of it."""
    code = 1
    try:
        os.close(wait_write)
        if os.read(wait_read, 1) == _READY:
            namespaces.map_users(pid, everyone=everyone)
            code = 0
    finally:
        os._exit(code)


def _try_all_steps(reason_fd: int) -> NoReturn:
    try:
        namespaces.adopt_orphans()
        enter()
        box = RankBox()
        child = box.fork()
        if child == 0:
            box.move_in()
            os.makedirs(f"{WORK_FOLDER}/cache/own")
            seal((), WORK_FOLDER, {}, f"{WORK_FOLDER}/cache/own")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            os.write(reason_fd, b"a process could not be sealed")
        box.end()
    except OSError as error:
        os.write(reason_fd, str(error).encode())
    finally:
        os._exit(0)


def _be_init(ready_fd: int, kept: Sequence[str]) -> NoReturn:
    """Prepare the files of a box, then collect orphans until killed."""
    try:
        namespaces.end_with_parent(signal.SIGKILL)
        _arrange_files(kept)
        os.close(ready_fd)
    except OSError as error:
        os.write(ready_fd, str(error).encode())
        os._exit(1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # Descriptors of the nursery would keep its channels alive.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            # Woken by the first orphan: nothing else makes this process a parent.
            signal.sigwait({signal.SIGCHLD})


def _arrange_files(kept: Sequence[str]) -> None:
    """Make everything read-only but /tmp and /dev/shm, which become empty, and show no other processes."""
    namespaces.unshare(namespaces.NEW_FILES)
    namespaces.keep_mounts_to_ourselves()
    held = {path: namespaces.hold(path) for path in kept}
    _arrange_devices()
    for path in filter(os.path.isdir, _COVERED):
        namespaces.mount_memory(path, mode="755", size="1m")
    namespaces.mount_memory("/tmp")
    for path, fd in held.items():
        os.makedirs(path, exist_ok=True)
        namespaces.place(fd, path)
    os.mkdir(WORK_FOLDER, 0o777)
    with suppress(OSError):
        # Refused where parts of /proc are masked, as in some containers; then other processes can be seen, not touched.
        namespaces.mount_proc("/proc")
    with suppress(OSError):
        # Limits this process namespace since Linux 6.14, and is refused before.
        Path("/proc/sys/kernel/pid_max").write_text(str(_MAX_PROCESSES))
    namespaces.set_writable("/", False, below=True)
    for path in ("/tmp", "/dev/shm", "/proc"):
        namespaces.set_writable(path, True)


def _arrange_devices() -> None:
    """Leave of /dev what computing needs: a root user could write to disks by their device files."""
    wanted = [path for pattern in _DEVICES for path in sorted(glob.glob(f"/dev/{pattern}"))]
    held = {path: namespaces.hold(path) for path in wanted}
    is_folder = {path: os.path.isdir(path) for path in wanted}
    namespaces.mount_memory("/dev", mode="755", size="64k")
    for path, fd in held.items():
        if is_folder[path]:
            os.mkdir(path)
        else:
            Path(path).touch()
        namespaces.place(fd, path)
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    namespaces.mount_memory("/dev/shm")


if __name__ == "__main__":
    # In a process of its own: a process with threads cannot try this, and forking one is asking for trouble.
    reason = probe()
    print(reason)
    sys.exit(1 if reason else 0)
