"""The judge's handle on the process that forks ranks (`pkb.launch.nursery`)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pkb.cuda.cache import cache_dir
from pkb.launch.processes import mark, marked
from pkb.records.errors import HarnessError

_START_DEADLINE_S = 120.0
_END_DEADLINE_S = 30.0


class Nursery:
    """Owns the process that forks ranks; starting it takes as long as importing torch, in the background.

    A candidate may kill that process. Then its ranks die with it, and the next `spawn` starts another.
    """

    def __init__(self, *, sandbox: bool = False) -> None:
        """Start it.

        Args:
            sandbox: put ranks into a sandbox where the system allows it, see `pkb.launch.sandbox`.
        """
        self._sandbox = sandbox
        self._start()

    @property
    def obstacle(self) -> str:
        """Why ranks are not in a sandbox; empty when they are. Waits until the process has started.

        Raises:
            HarnessError: it does not start.
        """
        if not self._ready:
            self._await_ready()
        return self._obstacle

    def spawn(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Fork a rank; returns its process id.

        Raises:
            HarnessError: no process can be started.
        """
        if self._lost:
            self._start()
        if not self._ready:
            self._await_ready()
        answer = self._request({"spawn": request}, fds, _START_DEADLINE_S)
        if "error" in answer:
            raise HarnessError(f"a rank could not be started: {answer['error']}.")
        # Process ids come back: what an earlier rank of this id did says nothing of this one.
        self._exit_codes.pop(answer["pid"], None)
        return int(answer["pid"])

    def end(self, folder: str) -> None:
        """End the ranks that were spawned with a folder and everything they started, and remove the folder."""
        if self._ready and not self._lost and self._socket.fileno() >= 0:
            self._request({"end": folder}, (), _END_DEADLINE_S)

    def fileno(self) -> int:
        """Descriptor that becomes readable when a rank has ended; call `exit_code` then.

        Raises:
            HarnessError: the process that forks ranks is gone, and all ranks with it.
        """
        if self._lost:
            self._lose()
        return self._socket.fileno()

    def exit_code(self, pid: int, wait_s: float = 0.0) -> int | None:
        """Exit code of a rank that has ended by itself, negative for a signal; None if it has not.

        Raises:
            HarnessError: the process that forks ranks is gone, and all ranks with it.
        """
        deadline = time.monotonic() + wait_s
        while self._receive(0.0):
            pass
        while pid not in self._exit_codes and self._receive(deadline - time.monotonic()):
            pass
        return self._exit_codes.get(pid)

    def close(self) -> None:
        """End the process that forks ranks, and every rank that is left."""
        self._socket.close()
        if not self._ready:
            self._process.kill()
        try:
            self._process.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._end_marked()

    def _start(self) -> None:
        self._ready = False
        self._lost = False
        self._obstacle = ""
        self._exit_codes: dict[int, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        self._token = f"{os.getpid()}-{secrets.token_hex(8)}"
        kept = [str(cache_dir())] if self._sandbox else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pkb.launch.nursery", str(theirs.fileno()), json.dumps(kept)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Stdout belongs to results alone.
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=_environment(self._token),
            )
        self._socket = ours

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self._ready:
            if not self._receive(deadline - time.monotonic()):
                raise HarnessError(f"the process that starts ranks was not ready within {_START_DEADLINE_S:.0f} s.")

    def _request(self, request: dict[str, Any], fds: Sequence[int], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its answer; answers to requests that were given up are dropped."""
        number = self._next_id
        self._next_id += 1
        self._answers.clear()
        try:
            socket.send_fds(self._socket, [json.dumps({"id": number, **request}).encode()], list(fds))
        except (BrokenPipeError, ConnectionResetError):
            self._lose()
        deadline = time.monotonic() + seconds
        while number not in self._answers:
            if not self._receive(deadline - time.monotonic()):
                raise HarnessError(f"the process that starts ranks did not answer within {seconds:.0f} s.")
        return self._answers.pop(number)

    def _receive(self, seconds: float) -> bool:
        """Take in one message; False when none comes in time."""
        if self._lost:
            self._lose()
        self._socket.settimeout(max(0.0, seconds))
        try:
            data = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return False
        except ConnectionResetError:
            data = b""
        finally:
            self._socket.settimeout(None)
        if not data:
            self._lose()
        message = json.loads(data)
        if "exited" in message:
            self._exit_codes[message["exited"]] = message["code"]
        elif "ready" in message:
            self._ready = True
            self._obstacle = message["obstacle"]
        else:
            self._answers[message["id"]] = message
        return True

    def _lose(self) -> NoReturn:
        """Clean up after the process has ended unasked, and say so.

        Raises:
            HarnessError: always.
        """
        if not self._lost:
            self._lost = True
            self._socket.close()
            self._process.kill()
            self._process.wait()
            self._end_marked()
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}; see its messages on stderr"
        raise HarnessError(f"the process that starts ranks {how}.")

    def _end_marked(self) -> None:
        """End what has escaped: a rank's descendants are orphaned to us only as long as the process lives."""
        deadline = time.monotonic() + _END_DEADLINE_S
        while left := marked(self._token):
            if time.monotonic() > deadline:
                raise HarnessError(f"processes that a solution left behind cannot be ended: {sorted(left)}.")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)


def _environment(token: str) -> dict[str, str]:
    """The judge's environment, with threads of libraries limited before they are loaded."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **mark(token),
        "PYTHONPATH": f"{root}:{path}" if path else root,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # The profiler's own chatter would fill what a candidate's output is shown in.
        "KINETO_LOG_LEVEL": "99",
    }


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
