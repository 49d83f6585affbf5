"""A process that imports torch once and forks rank processes, and leaves none of their descendants behind.

It never loads a candidate, opens no GPU and starts no thread before a fork. Orphans of its ranks become its own
children (it is a subreaper), so a candidate's forked grandchildren are found and ended too. When the judge
dies, its end of the socket closes, and everything is killed.

Run as `python -m pkb.launch.nursery FD` by `pkb.launch.ranks`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE_BYTES = 256 * 1024
NUM_RANK_FDS = 4
"""Descriptors that come with a spawn request: control socket, output pipe, stack file, progress page."""


def main(control_fd: int) -> None:
    """Serve requests until the judge closes the socket."""
    control = socket.socket(fileno=control_fd)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _preload()
    nursery = _Nursery(control)
    control.send(json.dumps({"ready": os.getpid()}).encode())
    try:
        nursery.serve()
    finally:
        nursery.kill_everything()


class _Nursery:
    """The serving loop's state: which children are ranks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: set[int] = set()
        self._folders: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Handle requests and exits of ranks."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        if not self._handle_request():
                            return
                    else:
                        with suppress(BlockingIOError):
                            os.read(self._wake_read, 4096)
                        self._reap()

    def kill_everything(self) -> None:
        """End all ranks and all their descendants."""
        self._kill(list(self._folders))

    def _handle_request(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, NUM_RANK_FDS)
        if not message:
            return False
        request = json.loads(message)
        if "spawn" in request:
            pid = self._spawn(request["spawn"], fds)
            self._reply({"spawned": pid, "tag": request["spawn"]["tag"]})
        else:
            self._kill(request["kill"])
            self._reply({"killed": request["kill"]})
        return True

    def _reply(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            # The judge is gone: the next read of the socket ends the loop.
            self._control.send(json.dumps(message).encode())

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            _become_rank(request, fds)
        for fd in fds:
            os.close(fd)
        self._ranks.add(pid)
        self._folders[pid] = request["folder"]
        return pid

    def _reap(self) -> None:
        """Collect ended children; ranks among them are reported, orphans are not."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._ranks:
                self._ranks.remove(pid)
                self._reply({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def _kill(self, pids: list[int]) -> None:
        """End these ranks, their process groups and what has been orphaned to us; remove their folders."""
        for pid in pids:
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._ranks.discard(pid)
        while orphans := _children_of(os.getpid()) - self._ranks:
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        for folder in {self._folders.pop(pid) for pid in pids if pid in self._folders}:
            shutil.rmtree(folder, ignore_errors=True)


def _become_rank(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Turn this fork into a rank process; never returns."""
    code = 70
    try:
        control_fd, output_fd, stack_fd, progress_fd = fds
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null_fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_fd, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        Path("/proc/self/oom_score_adj").write_text("1000")
        if request["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"],) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        from pkb.launch.worker import main as work

        code = work(socket.socket(fileno=control_fd), stack_fd, progress_fd)
    except BaseException:
        # The only place left to say so is the output pipe, which the judge shows.
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            # Output of a rank is a courtesy; a closed pipe must not change how it ends.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _preload() -> None:
    """Import what every rank needs, so that a fork starts with it."""
    import torch.distributed

    import pkb.launch.worker
    import pkb.symm  # noqa: F401

    torch.set_num_threads(1)


def _children_of(pid: int) -> set[int]:
    children = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The command name stands in parentheses and may hold spaces: count from behind it.
            parent = stat.rpartition(")")[2].split()[1]
            if int(parent) == pid:
                children.add(int(entry.name))
    return children


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


if __name__ == "__main__":
    main(int(sys.argv[1]))
