"""A process that imports torch once and forks rank processes, and leaves none of their descendants behind.

It never loads a candidate, opens no GPU and starts no thread before a fork. Orphans of its ranks become its own
children (it is a subreaper), so a candidate's forked grandchildren are found and ended too. When the judge
dies, its end of the socket closes, and everything is killed.

Run as `python -m pkb.launch.nursery FD` by `pkb.launch.nursery_client`.
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
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pkb.launch import namespaces, sandbox
from pkb.launch.processes import children_of

_MAX_MESSAGE_BYTES = 256 * 1024
_REAP_PAUSE_S = 0.0005
_IO_NONBUFFERED = 2
NUM_RANK_FDS = 4
"""Descriptors that come with a spawn request: control socket, output pipe, stack file, progress page."""


def main(control_fd: int, kept: list[str] | None) -> None:
    """Serve requests until the judge closes the socket.

    Args:
        control_fd: the socket.
        kept: put ranks into a sandbox, where these folders stay visible; None for no sandbox.
    """
    control = socket.socket(fileno=control_fd)
    namespaces.adopt_orphans()
    # Before the import of torch, which starts threads: a process with threads may not change its user namespace.
    obstacle = "it was not asked for" if kept is None else sandbox.probe()
    if not obstacle:
        sandbox.enter()
    _preload()
    nursery = _Nursery(control, obstacle, sorted({*(kept or ()), *sandbox.folders_of_python()}))
    try:
        nursery.serve()
    finally:
        nursery.end_everything()


class _Nursery:
    """The serving loop's state: which children are ranks, and of which set."""

    def __init__(self, control: socket.socket, obstacle: str, kept: list[str]) -> None:
        self._control = control
        self._obstacle = obstacle
        """Why ranks are not in a sandbox; empty when they are."""
        self._kept = kept
        self._boxes: dict[str, sandbox.RankBox] = {}
        """The box of each set of ranks, by the set's folder."""
        self._ranks: dict[int, str] = {}
        """Process id of each living rank, and the folder of its set."""
        self._folders: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Handle requests and exits of ranks until the judge is gone."""
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._reply({"ready": os.getpid(), "obstacle": self._obstacle})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    if not self._handle_request():
                        return
                else:
                    with suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()

    def end_everything(self) -> None:
        """End all ranks and all their descendants."""
        for folder in list(self._folders):
            self._end(folder)

    def _handle_request(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, NUM_RANK_FDS)
        except ConnectionResetError:
            # The judge has ended without reading all that it was told.
            return False
        if not message:
            return False
        request = json.loads(message)
        answer: dict[str, Any] = {"id": request["id"]}
        if "spawn" in request:
            try:
                answer["pid"] = self._spawn(request["spawn"], fds)
            except OSError as error:
                answer["error"] = f"cannot fork: {error.strerror}"
            finally:
                for fd in fds:
                    os.close(fd)
        else:
            self._end(request["end"])
        self._reply(answer)
        return True

    def _reply(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            # The judge is gone: the next read of the socket ends the loop.
            self._control.send(json.dumps(message).encode())

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        folder = request["folder"]
        self._folders.add(folder)
        box = None
        if not self._obstacle:
            if folder not in self._boxes:
                self._boxes[folder] = sandbox.RankBox(self._kept)
            box = self._boxes[folder]
        pid = box.fork() if box else os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            for other in self._boxes.values():
                if other is not box:
                    other.close()
            _become_rank(request, fds, box)
        self._ranks[pid] = folder
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
            if self._ranks.pop(pid, None) is not None:
                self._reply({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def _end(self, folder: str) -> None:
        """End the ranks of a set and all that descends from them, and remove the set's folder.

        Descendants whose parents are gone have become our own children, whatever session they moved to.
        """
        self._ranks = {pid: theirs for pid, theirs in self._ranks.items() if theirs != folder}
        box = self._boxes.pop(folder, None)
        if box is not None:
            box.end()
        num_quiet = 0
        # A list may miss a process whose parent ends while it is made, so it has to be empty twice.
        while num_quiet < 2:
            doomed = children_of(os.getpid()) - set(self._ranks) - {box.pid for box in self._boxes.values()}
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            num_quiet = 0 if doomed else num_quiet + 1
            if doomed:
                time.sleep(_REAP_PAUSE_S)
        self._folders.discard(folder)
        remove_folder(folder)


def remove_folder(folder: str) -> None:
    """Remove what ranks have left, also folders whose permissions they took away."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            below = os.path.join(path, name)
            if not os.path.islink(below):
                with suppress(OSError):
                    os.chmod(below, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _become_rank(request: dict[str, Any], fds: list[int], box: sandbox.RankBox | None) -> NoReturn:
    """Turn this fork into a rank process; never returns."""
    code = 70
    try:
        control_fd, output_fd, stack_fd, progress_fd = fds
        os.setsid()
        namespaces.end_with_parent(signal.SIGKILL)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null_fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_fd, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        os.close(null_fd)
        _unbuffer_stdout_of_c()
        os.environ.update(request["environment"])
        if box is not None:
            box.move_in()
        os.chdir(request["folder"] if box is None else sandbox.WORK_FOLDER)
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


def _unbuffer_stdout_of_c() -> None:
    """Let printf of C and of kernels be seen even when the rank is killed."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IO_NONBUFFERED, 0)


def _preload() -> None:
    """Import what every rank needs, so that a fork starts with it."""
    import torch.distributed

    import pkb.launch.worker
    import pkb.symm  # noqa: F401

    torch.set_num_threads(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
