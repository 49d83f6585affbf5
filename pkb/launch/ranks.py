"""The judge's side of rank processes: starting sets of them, asking them, watching them, ending them."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pkb.launch import wire
from pkb.launch.output import OutputTail
from pkb.launch.plan import RankFault, Setup
from pkb.launch.progress import ProgressPage
from pkb.records.base import Record
from pkb.records.errors import HarnessError
from pkb.records.verdict import DeviceMode, RankState

_START_DEADLINE_S = 120.0
_KILL_DEADLINE_S = 30.0
_STACK_WAIT_S = 0.5
_GRACE_S = 1.0
"""How long other ranks may take to end or fail by themselves after one has failed."""
_STACK_SIGNAL = signal.SIGUSR1
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_MAX_FRAMES = 12


class RankFailure(Exception):
    """A rank did not answer as it should; all ranks of the set have been ended."""

    def __init__(
        self,
        kind: Literal["fault", "died", "deadline", "protocol"],
        rank: int,
        *,
        states: tuple[RankState, ...],
        output: str,
        fault: RankFault | None = None,
        exit_code: int | None = None,
        text: str = "",
    ) -> None:
        super().__init__(f"rank {rank}: {kind} {text}")
        self.kind = kind
        self.rank = rank
        """The first rank that failed; for a deadline, the first that has not answered."""
        self.states = states
        self.output = output
        """End of what the ranks printed."""
        self.fault = fault
        self.exit_code = exit_code
        """For `died`: the exit code, negative for a signal."""
        self.text = text


@dataclass(frozen=True)
class Layout:
    """How many ranks run where."""

    mode: DeviceMode
    world_size: int
    num_threads: int
    memory_bytes: int
    """Limit of private memory of a rank on the CPU; 0 for none."""


class Nursery:
    """Owns the process that forks ranks; starting it takes as long as importing torch, in the background."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pkb.launch.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Stdout belongs to results alone.
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=_nursery_environment(),
            )
        self._socket = ours
        self._ready = False
        self._exit_codes: dict[int, int] = {}
        self._answers: list[dict[str, Any]] = []

    def spawn(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Fork a rank; returns its process id."""
        self._wait_ready()
        socket.send_fds(self._socket, [json.dumps({"spawn": request}).encode()], list(fds))
        return int(self._await("spawned", _START_DEADLINE_S)["spawned"])

    def kill(self, pids: Sequence[int]) -> None:
        """End ranks with everything they started, and wait until they are gone."""
        self._socket.send(json.dumps({"kill": list(pids)}).encode())
        self._await("killed", _KILL_DEADLINE_S)

    def exit_code(self, pid: int, wait_s: float = 2.0) -> int | None:
        """Exit code of a rank that has ended by itself, negative for a signal; None if it has not."""
        deadline = time.monotonic() + wait_s
        while pid not in self._exit_codes and self._receive(deadline):
            pass
        return self._exit_codes.get(pid)

    def close(self) -> None:
        """End the nursery and every rank that is left."""
        self._socket.close()
        try:
            self._process.wait(_KILL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_ready(self) -> None:
        if not self._ready:
            self._await("ready", _START_DEADLINE_S)
            self._ready = True

    def _await(self, key: str, seconds: float) -> dict[str, Any]:
        """The next answer that has a key; exits of ranks that arrive meanwhile are noted."""
        deadline = time.monotonic() + seconds
        while True:
            for answer in self._answers:
                if key in answer:
                    self._answers.remove(answer)
                    return answer
            if not self._receive(deadline):
                raise HarnessError(f"the process that starts ranks did not answer {key!r} within {seconds:.0f} s.")

    def _receive(self, deadline: float) -> bool:
        """Take in one message; False when none came before the deadline."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return False
        if not data:
            raise HarnessError("the process that starts ranks has ended; see its messages on stderr.")
        message = json.loads(data)
        if "exited" in message:
            self._exit_codes[message["exited"]] = message["code"]
        else:
            self._answers.append(message)
        return True


@dataclass
class _Rank:
    """One rank process as the judge sees it."""

    number: int
    pid: int
    channel: socket.socket
    reader: wire.Reader
    progress: ProgressPage
    stack_fd: int


class RankSet:
    """W rank processes of one process group: used for one candidate, then ended."""

    def __init__(self, nursery: Nursery, layout: Layout) -> None:
        """Fork the ranks and let them join their group; returns before they have, see `wait_ready`."""
        self.layout = layout
        self._nursery = nursery
        self._closed = False
        self._set_up = False
        self._folder = tempfile.mkdtemp(prefix="pkb-ranks-")
        self._output = OutputTail()
        self._ranks: list[_Rank] = []
        try:
            for number in range(layout.world_size):
                self._ranks.append(self._spawn(number))
            self._send([self._setup(number) for number in range(layout.world_size)])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RankSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Wait until the process group stands.

        Raises:
            HarnessError: it does not come to stand; no candidate has run yet, so it is not its fault.
        """
        if self._set_up:
            return
        try:
            self._gather(_START_DEADLINE_S)
        except RankFailure as failure:
            raise HarnessError(
                f"ranks could not start ({self.layout.mode}, {self.layout.world_size} ranks): {failure}\n"
                f"{failure.output}"
            ) from failure
        self._set_up = True

    def request(self, command: Record | Sequence[Record], deadline_s: float) -> list[wire.Message]:
        """Ask every rank, each with its own command or all with one, and wait for all answers.

        Raises:
            RankFailure: a rank failed, ended, or did not answer in time. All ranks are gone then.
        """
        self.wait_ready()
        commands = [command] * len(self._ranks) if isinstance(command, Record) else command
        self._send(commands)
        return self._gather(deadline_s)

    def request_one(self, rank: int, command: Record, deadline_s: float) -> wire.Message:
        """Ask one rank alone; raises as `request`."""
        self.wait_ready()
        self._send_to(self._ranks[rank], command)
        return self._gather(deadline_s, only=[rank])[0]

    def close(self) -> None:
        """End the ranks and everything they started or left in their folder."""
        if self._closed:
            return
        self._closed = True
        try:
            self._nursery.kill([rank.pid for rank in self._ranks])
        finally:
            for rank in self._ranks:
                rank.channel.close()
                rank.progress.close()
                os.close(rank.stack_fd)
            self._output.close()

    def _spawn(self, number: int) -> _Rank:
        ours, theirs = socket.socketpair()
        output_fd = self._output.open_pipe(f"rank {number}")
        stack_fd = os.memfd_create("pkb-stacks")
        progress_fd = ProgressPage.create()
        request = {
            "tag": number,
            "folder": self._folder,
            "environment": self._environment(number),
            "memory_bytes": self.layout.memory_bytes,
        }
        try:
            pid = self._nursery.spawn(request, [theirs.fileno(), output_fd, stack_fd, progress_fd])
        finally:
            theirs.close()
            os.close(output_fd)
        progress = ProgressPage(progress_fd)
        os.close(progress_fd)
        return _Rank(number, pid, ours, wire.Reader(ours), progress, stack_fd)

    def _environment(self, number: int) -> dict[str, str]:
        environment = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(self.layout.world_size),
            "LOCAL_WORLD_SIZE": str(self.layout.world_size),
            # Ranks talk to each other on this machine only.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self.layout.mode is DeviceMode.SHARED_GPU:
            environment["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        return environment

    def _setup(self, number: int) -> Setup:
        return Setup(
            rank=number,
            world_size=self.layout.world_size,
            mode=self.layout.mode,
            device_index=number if self.layout.mode is DeviceMode.CUDA else 0,
            store=f"{self._folder}/store",
            num_threads=self.layout.num_threads,
        )

    def _send(self, commands: Sequence[Record]) -> None:
        for rank, command in zip(self._ranks, commands, strict=True):
            self._send_to(rank, command)

    def _send_to(self, rank: _Rank, command: Record) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            # The rank has ended: `_gather` finds its channel closed and says so.
            wire.send(rank.channel, command.model_dump(mode="json"))

    def _gather(self, deadline_s: float, only: Sequence[int] | None = None) -> list[wire.Message]:
        """One answer from each rank, or a RankFailure about the first that went wrong."""
        asked = [rank for rank in self._ranks if only is None or rank.number in only]
        answers: dict[int, wire.Message] = {}
        failure: _FirstFailure | None = None
        deadline = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            for rank in asked:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while len(selector.get_map()):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left):
                    rank = key.data
                    found = self._take(rank, answers)
                    if found is not None or rank.number in answers:
                        selector.unregister(rank.channel)
                    if found is not None:
                        if failure is None:
                            deadline = min(deadline, time.monotonic() + _GRACE_S)
                        failure = _graver(failure, found)
        if failure is None and len(answers) < len(asked):
            late = next(rank.number for rank in asked if rank.number not in answers)
            failure = _FirstFailure("deadline", late, text=f"no answer within {deadline_s:g} s")
        if failure is not None:
            self._raise(failure, answers)
        return [answers[rank.number] for rank in asked]

    def _take(self, rank: _Rank, answers: dict[int, wire.Message]) -> _FirstFailure | None:
        """Read what a rank has sent; its answer goes to `answers`, a failure is returned."""
        try:
            message = rank.reader.poll()
        except EOFError:
            return _FirstFailure("died", rank.number)
        except wire.ProtocolError as error:
            return _FirstFailure("protocol", rank.number, text=str(error))
        if message is None:
            return None
        if "fault" in message.header:
            return _FirstFailure("fault", rank.number, fault=RankFault.model_validate(message.header["fault"]))
        answers[rank.number] = message
        return None

    def _raise(self, failure: _FirstFailure, answers: dict[int, wire.Message]) -> None:
        """Find out where every rank is, end them all, and raise."""
        states = tuple(self._states(answers))
        exit_code = None
        if failure.kind == "died":
            exit_code = self._nursery.exit_code(self._ranks[failure.rank].pid)
        output = self._output.text()
        self.close()
        raise RankFailure(
            failure.kind,
            failure.rank,
            states=states,
            output=output,
            fault=failure.fault,
            exit_code=exit_code,
            text=failure.text,
        )

    def _states(self, answers: dict[int, wire.Message]) -> list[RankState]:
        alive = [rank for rank in self._ranks if self._nursery.exit_code(rank.pid, wait_s=0.0) is None]
        for rank in alive:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, _STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline and any(os.fstat(r.stack_fd).st_size == 0 for r in alive):
            time.sleep(0.01)
        states = []
        for rank in self._ranks:
            code = self._nursery.exit_code(rank.pid, wait_s=0.0)
            if code is not None:
                states.append(RankState(rank=rank.number, state=describe_exit(code)))
            else:
                text = os.pread(rank.stack_fd, 65536, 0).decode(errors="replace")
                states.append(RankState(rank=rank.number, state=rank.progress.text(), stack=_candidate_frames(text)))
        return states


@dataclass(frozen=True)
class _FirstFailure:
    kind: Literal["fault", "died", "deadline", "protocol"]
    rank: int
    fault: RankFault | None = None
    text: str = ""


def _graver(first: _FirstFailure | None, then: _FirstFailure) -> _FirstFailure:
    """Which of two failures is the cause: the first, but a rank's death also makes its peers raise."""
    if first is None or (first.kind == "fault" and then.kind == "died"):
        return then
    return first


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _candidate_frames(text: str) -> tuple[str, ...]:
    """Innermost frames of the main thread, without the judge's own."""
    own = str(Path(__file__).parent)
    main_thread = text.rpartition("Current thread")[2] if "Current thread" in text else text
    frames = [m for m in _FRAME.finditer(main_thread) if not m["file"].startswith(own)]
    frames = [m for m in frames if "/pkb/launch/" not in m["file"] and not m["file"].startswith("<frozen")]
    return tuple(f"{m['file']}:{m['line']} {m['name'].strip()}" for m in frames[:_MAX_FRAMES])


def _nursery_environment() -> dict[str, str]:
    """The judge's environment, with threads of libraries limited before they are loaded."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
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
