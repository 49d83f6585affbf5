"""The judge's side of rank processes: starting sets of them, asking them, watching them, ending them."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn

from pkb.launch import wire
from pkb.launch.nursery import remove_folder
from pkb.launch.nursery_client import Nursery
from pkb.launch.output import OutputTail
from pkb.launch.plan import LOST_CHANNEL, Command, Prepare, RankFault, RunCalls, Setup, check_answer, max_payload_bytes
from pkb.launch.processes import state_of
from pkb.launch.progress import ProgressPage
from pkb.launch.sandbox import WORK_FOLDER
from pkb.records.errors import HarnessError
from pkb.records.verdict import DeviceMode, RankState

__all__ = ["Layout", "Nursery", "RankFailure", "RankSet", "describe_exit"]

_START_DEADLINE_S = 120.0
_SEND_DEADLINE_S = 10
_EXIT_WAIT_S = 2.0
_STACK_WAIT_S = 0.5
_GRACE_S = 1.0
"""How long other ranks may take to end or fail by themselves after one has failed."""
_STACK_SIGNAL = signal.SIGUSR1
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_MAX_STACK_BYTES = 1 << 20
_BUILDER = "torch/utils/cpp_extension.py"
_NO_STACK = {"T": " (stopped by a signal)", "D": " (in a call of the kernel that cannot be interrupted)"}
"""Why a rank told no stack, by the letter of its state in /proc."""
_MAX_FRAMES = 12
_MAX_TEXT_CHARS = 500


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
        what = fault.text if fault is not None else describe_exit(exit_code) if exit_code is not None else text or kind
        super().__init__(f"rank {rank}: {what}")
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


@dataclass
class _Rank:
    """One rank process as the judge sees it."""

    number: int
    pid: int
    channel: socket.socket
    reader: wire.Reader
    progress: ProgressPage
    stack_fd: int
    asked: Command
    """The command that it has not answered yet, or has answered last."""
    ticket: str = ""
    """What its answer has to carry: a candidate that writes to descriptors it has not opened does not know it."""

    def stacks(self) -> str:
        """What the rank has written of its threads' stacks."""
        return os.pread(self.stack_fd, _MAX_STACK_BYTES, 0).decode(errors="replace")

    def close(self) -> None:
        """Release what the judge holds of it."""
        self.channel.close()
        self.progress.close()
        os.close(self.stack_fd)


class RankSet:
    """W rank processes of one process group: used for one candidate, then ended."""

    def __init__(self, nursery: Nursery, layout: Layout) -> None:
        """Fork the ranks and let them join their group; returns before they have, see `wait_ready`."""
        self.layout = layout
        self._nursery = nursery
        self._closed = False
        self._set_up = False
        self._max_result_bytes = 0
        self._folder = tempfile.mkdtemp(prefix=f"pkb-ranks-{os.getpid()}-")
        self.is_sandboxed = not nursery.obstacle
        self._meeting_folder = WORK_FOLDER if self.is_sandboxed else self._folder
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
        if self._closed:
            raise HarnessError("these ranks have been ended.")
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

    def request(
        self, command: Command | Sequence[Command], deadline_s: float, *, build_deadline_s: float = 0.0
    ) -> list[wire.Message]:
        """Ask every rank, each with its own command or all with one, and wait for all answers.

        Args:
            command: what to do.
            deadline_s: seconds that it may take.
            build_deadline_s: seconds that it may take as long as a rank is inside torch's extension builder.

        Raises:
            RankFailure: a rank failed, ended, or did not answer in time. All ranks are gone then.
        """
        self.wait_ready()
        commands = command if isinstance(command, Sequence) else [command] * len(self._ranks)
        self._send(commands)
        return self._gather(deadline_s, build_deadline_s=build_deadline_s)

    def request_one(self, rank: int, command: Command, deadline_s: float) -> wire.Message:
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
            self._nursery.end(self._folder)
        finally:
            for rank in self._ranks:
                rank.close()
            self._output.close()
            remove_folder(self._folder)

    def _spawn(self, number: int) -> _Rank:
        ours, theirs = socket.socketpair()
        # A rank that reads no more must not hold up the judge.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_DEADLINE_S, 0))
        output_fd = self._output.open_pipe(f"rank {number}")
        stack_fd = os.memfd_create("pkb-stacks")
        progress_fd = ProgressPage.create()
        rank = _Rank(number, 0, ours, wire.Reader(ours), ProgressPage(progress_fd), stack_fd, self._setup(number))
        request = {
            "folder": self._folder,
            "environment": self._environment(number),
            "memory_bytes": self.layout.memory_bytes,
        }
        try:
            rank.pid = self._nursery.spawn(request, [theirs.fileno(), output_fd, stack_fd, progress_fd])
        except BaseException:
            rank.close()
            raise
        finally:
            theirs.close()
            os.close(output_fd)
            os.close(progress_fd)
        return rank

    def _environment(self, number: int) -> dict[str, str]:
        environment = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(self.layout.world_size),
            "LOCAL_WORLD_SIZE": str(self.layout.world_size),
            # Ranks talk to each other on this machine only.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self.is_sandboxed:
            # What programs keep there for later is lost with the ranks.
            environment |= {"TMPDIR": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton"}
        if self.layout.mode is DeviceMode.SHARED_GPU:
            environment["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        return environment

    def _setup(self, number: int) -> Setup:
        return Setup(
            rank=number,
            world_size=self.layout.world_size,
            mode=self.layout.mode,
            device_index=number if self.layout.mode is DeviceMode.CUDA else 0,
            store=f"{self._meeting_folder}/store",
            num_threads=self.layout.num_threads,
        )

    def _send(self, commands: Sequence[Command]) -> None:
        for rank, command in zip(self._ranks, commands, strict=True):
            self._send_to(rank, command)

    def _send_to(self, rank: _Rank, command: Command) -> None:
        rank.asked = command
        rank.ticket = secrets.token_hex(16)
        if isinstance(command, Prepare):
            self._max_result_bytes = command.max_result_bytes
        rank.reader.max_payload_bytes = max_payload_bytes(command, self._max_result_bytes)
        with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            # The rank has ended or reads no more: `_gather` finds that out and says so.
            wire.send(rank.channel, {"ticket": rank.ticket, "command": command.model_dump(mode="json")})

    def _gather(
        self, deadline_s: float, only: Sequence[int] | None = None, build_deadline_s: float = 0.0
    ) -> list[wire.Message]:
        """One answer from each rank, or a RankFailure about the first that went wrong."""
        asked = [rank for rank in self._ranks if only is None or rank.number in only]
        answers: dict[int, wire.Message] = {}
        failure: _FirstFailure | None = None
        begin = time.monotonic()
        deadline = begin + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._nursery, selectors.EVENT_READ, None)
            for rank in asked:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            waiting = {rank.number for rank in asked}
            while waiting:
                left = deadline - time.monotonic()
                if left <= 0:
                    if failure is not None or not self._builds(waiting, begin + build_deadline_s):
                        break
                    deadline = time.monotonic() + deadline_s
                    continue
                events = selector.select(left)
                ready = [key.data for key, _ in events if key.data is not None]
                if len(ready) < len(events):
                    ready += self._ended(waiting)
                for rank in ready:
                    if rank.number not in waiting:
                        continue
                    found = self._take(rank, answers)
                    if found is not None or rank.number in answers:
                        selector.unregister(rank.channel)
                        waiting.remove(rank.number)
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

    def _builds(self, numbers: set[int], until: float) -> bool:
        """Whether one of these ranks is inside torch's extension builder, and that may go on."""
        if time.monotonic() >= until:
            return False
        ranks = [rank for rank in self._ranks if rank.number in numbers]
        _dump_stacks(ranks)
        return any(_BUILDER in rank.stacks() for rank in ranks)

    def _ended(self, numbers: set[int]) -> list[_Rank]:
        """Which of these ranks have ended; their channels may stay open in processes that they have forked."""
        return [r for r in self._ranks if r.number in numbers and self._nursery.exit_code(r.pid) is not None]

    def _take(self, rank: _Rank, answers: dict[int, wire.Message]) -> _FirstFailure | None:
        """Read what a rank has sent; its answer goes to `answers`, a failure is returned."""
        try:
            message = rank.reader.poll()
            if message is None:
                ended = self._nursery.exit_code(rank.pid) is not None
                return _FirstFailure("died", rank.number) if ended else None
            if message.header.pop("ticket", None) != rank.ticket:
                raise ValueError("an answer without the ticket of the command")
            if "fault" in message.header:
                fault = RankFault.model_validate(message.header["fault"])
                return _FirstFailure("fault", rank.number, fault=fault)
            check_answer(rank.asked, message.header)
        except EOFError:
            return _FirstFailure("died", rank.number)
        except (wire.ProtocolError, ValueError) as error:
            return _FirstFailure("protocol", rank.number, text=" ".join(str(error).split())[:_MAX_TEXT_CHARS])
        answers[rank.number] = message
        return None

    def _raise(self, failure: _FirstFailure, answers: dict[int, wire.Message]) -> NoReturn:
        """Find out where every rank is, end them all, and raise."""
        exit_code = None
        if failure.kind == "died":
            exit_code = self._nursery.exit_code(self._ranks[failure.rank].pid, _EXIT_WAIT_S)
        states = tuple(self._states(answers))
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
        """Where every rank is, with the Python lines that it is at or, if it ended by a signal, was at."""
        codes = {rank.number: self._nursery.exit_code(rank.pid) for rank in self._ranks}
        _dump_stacks([rank for rank in self._ranks if codes[rank.number] is None])
        states = []
        for rank in self._ranks:
            code, state = codes[rank.number], rank.progress.text()
            text = rank.stacks()
            if code is not None:
                state = f"{describe_exit(code)}, last seen {state}"
            elif rank.number in answers and isinstance(rank.asked, RunCalls):
                state = f"returned from all {len(rank.asked.calls)} calls"
            elif not text:
                state = f"{state}{_NO_STACK.get(state_of(rank.pid), '')}"
            states.append(RankState(rank=rank.number, state=state, stack=_candidate_frames(text)))
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


def _dump_stacks(ranks: Sequence[_Rank]) -> None:
    """Let living ranks write the stacks of their threads in place of what they wrote before."""
    for rank in ranks:
        # The rank writes through the same open file, so this moves its place in it, too.
        os.ftruncate(rank.stack_fd, 0)
        os.lseek(rank.stack_fd, 0, os.SEEK_SET)
        with suppress(ProcessLookupError):
            os.kill(rank.pid, _STACK_SIGNAL)
    _wait_for_stacks([rank.stack_fd for rank in ranks])


def _wait_for_stacks(fds: Sequence[int]) -> None:
    """Wait until a stack has been written to each file and none grows any more."""
    deadline = time.monotonic() + _STACK_WAIT_S
    before: list[int] = []
    while time.monotonic() < deadline:
        sizes = [os.fstat(fd).st_size for fd in fds]
        if all(sizes) and sizes == before:
            return
        before = sizes
        time.sleep(0.02)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code == LOST_CHANNEL:
        return "gave up because its channel to the judge was closed"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _candidate_frames(text: str) -> tuple[str, ...]:
    """Innermost frames of the main thread, without the judge's own."""
    own = str(Path(__file__).parent)
    current = text.rpartition("Current thread")[2].partition("\n\n")[0]
    frames = [m for m in _FRAME.finditer(current) if not m["file"].startswith((own, "<frozen"))]
    return tuple(f"{m['file']}:{m['line']} {m['name'].strip()}" for m in frames[:_MAX_FRAMES])
