"""A rank process: executes the judge's plans. The only module that loads a candidate.

Secrets stay out of reach of the candidate as far as one process allows: arguments are made before it is
loaded, the module that made them is dropped, and seeds are not kept.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import inspect
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from pkb import symm
from pkb.cuda import CompileError, builds
from pkb.launch import build, calls, sandbox, tamper, wire
from pkb.launch.arguments import Writes
from pkb.launch.clock import CpuStream, CudaStream, Stream
from pkb.launch.plan import (
    COMMAND,
    LOST_CHANNEL,
    Build,
    Done,
    DrawPlan,
    ListCollectives,
    Load,
    LoadAnswer,
    Prepare,
    Profile,
    RankFault,
    Redraw,
    RunCalls,
    Setup,
    TakeResult,
    TimeBlock,
)
from pkb.launch.progress import ProgressPage, State
from pkb.launch.staging import stage_point_to_point
from pkb.launch.watch import Watch
from pkb.problems._draw import DrawSeeds, make_draw
from pkb.problems._find import read_problem
from pkb.problems._spec import Dtype, Group, Problem
from pkb.records.base import Record
from pkb.records.verdict import DeviceMode

STACK_SIGNAL = signal.SIGUSR1
"""Makes a rank write the stacks of its threads, even while it is stuck in C code."""
_MAX_TEXT_CHARS = 500
_MAX_COMPILE_CHARS = 4000
_MAX_LINE_CHARS = 1000
_MAX_LOG_CHARS = 20_000
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc")
_GROUP_TIMEOUT = timedelta(hours=1)  # The judge's deadlines are shorter and explain more.


def main(control: socket.socket, stack_fd: int, progress_fd: int) -> int:
    """Execute commands until the judge closes the channel; returns the exit code."""
    faulthandler.enable(file=stack_fd, all_threads=True)
    rank = _Rank(control, ProgressPage(progress_fd))
    changed = tamper.watch()
    try:
        while (header := _receive(control)) is not None:
            # Anew before every command, since a candidate may have taken the signal for itself.
            faulthandler.unregister(STACK_SIGNAL)
            faulthandler.register(STACK_SIGNAL, file=stack_fd, all_threads=True)
            if (what := changed()) != "":
                rank.refuse(header, what)
                continue
            rank.execute(header)
    except _LostChannelError:
        return LOST_CHANNEL
    return 0


class _LostChannelError(Exception):
    """The judge has gone, or gave up on this rank."""


def _receive(control: socket.socket) -> wire.Header | None:
    try:
        return wire.receive_blocking(control)
    except (OSError, wire.ProtocolError) as error:
        raise _LostChannelError from error


class _Rank:
    """What a rank keeps between commands."""

    def __init__(self, control: socket.socket, progress: ProgressPage) -> None:
        self._control = control
        self._progress = progress
        self._pid = os.getpid()
        self._ticket = ""
        """Goes back with the answer to the command that came with it."""
        self._folder = ""
        """Where the candidate lies."""
        self._device = torch.device("cpu")
        self._stream: Stream = CpuStream()
        self._draws: list[tuple[Any, ...]] = []
        self._timed_draws: list[tuple[Any, ...]] = []
        """Arguments of the calls of the next block."""
        self._make: Callable[[DrawPlan], tuple[Any, ...]] | None = None
        """Draws arguments of the problem that was prepared."""
        self._max_result_bytes = 0
        self._writes = Writes()
        self._groups = _Groups()
        self._caller: calls.Caller | None = None

    def execute(self, header: wire.Header) -> None:
        """Do one command and answer it."""
        self._ticket = header["ticket"]
        command = COMMAND.validate_python(header["command"])
        if isinstance(command, Setup):
            self._setup(command)
        elif isinstance(command, Prepare):
            self._prepare(command)
        elif isinstance(command, Load):
            self._load(command)
        elif isinstance(command, RunCalls):
            self._answer_calls(lambda caller: caller.run(command))
        elif isinstance(command, Redraw):
            self._redraw(command)
        elif isinstance(command, TimeBlock):
            self._answer_calls(lambda caller: caller.time(command, self._timed_draws))
        elif isinstance(command, TakeResult):
            self._answer_calls(lambda caller: caller.take_result())
        elif isinstance(command, Profile):
            self._answer_calls(lambda caller: caller.profile(command))
        elif isinstance(command, ListCollectives):
            self._answer_calls(lambda caller: caller.list_collectives(command))
        self._progress.set(State.IDLE)

    def refuse(self, header: wire.Header, what: str) -> None:
        """Answer a command by what the candidate has replaced."""
        self._ticket = header["ticket"]
        self._fail(RankFault(kind="tampered", text=f"the solution has replaced {what}, which the judge works with"))

    def _setup(self, command: Setup) -> None:
        self._progress.set(State.SETTING_UP)
        torch.set_num_threads(command.num_threads)
        backend = "gloo"
        device_id = None
        if command.mode is not DeviceMode.CPU:
            torch.cuda.set_device(command.device_index)
            self._device = torch.device("cuda", command.device_index)
            self._stream = CudaStream()
            torch.zeros(1, device=self._device)
            if command.mode is DeviceMode.CUDA:
                backend, device_id = "cpu:gloo,cuda:nccl", self._device
        dist.init_process_group(
            backend,
            store=dist.FileStore(  # type: ignore[attr-defined]
                command.store, command.world_size
            ),
            rank=command.rank,
            world_size=command.world_size,
            timeout=_GROUP_TIMEOUT,
            device_id=device_id,
        )
        if command.mode is DeviceMode.SHARED_GPU:
            stage_point_to_point()
        self._answer(Done(done="setup"))

    def _prepare(self, command: Prepare) -> None:
        """Make the arguments of all trials, then forget where they came from."""
        self._progress.set(State.PREPARING)
        with _folder_in_view(command) as folder:
            problem = read_problem(folder)
            inputs = problem.load().inputs
            free = frozenset(problem.positions(problem.may_write).values())
            self._writes = Writes(problem.positions(problem.in_place), free)
            self._make = _maker(problem, inputs, command.dtype, self._device, self._groups)
            self._draws += [self._make(plan) for plan in command.draws]
        self._max_result_bytes = command.max_result_bytes
        # The same file holds the answer to every question, and `inputs` has no use for it.
        for name in ("oracle", "near_misses"):
            inputs.__globals__.pop(name, None)
        del inputs, problem
        gc.collect()
        # Neither the global generator nor a copy of it may tell how inputs were drawn.
        torch.seed()
        self._answer(Done(done="prepare"))

    def _redraw(self, command: Redraw) -> None:
        """Draw arguments of timed calls; their seeds tell no peer's data, and no data before they arrive."""
        assert self._make is not None, "the judge prepares ranks before it times them"
        # Before the new ones are made: both may not fit.
        self._timed_draws.clear()
        seeds = zip(command.own_seeds, command.shared_seeds, strict=True)
        try:
            for index, (own, shared) in enumerate(seeds, start=command.first_index):
                plan = DrawPlan(size=command.size, index=index, exact=False, own_seed=own, shared_seed=shared)
                self._timed_draws.append(self._make(plan))
            self._stream.synchronize()
        except BaseException as error:
            self._fail(_call_fault(error, 0, self._folder))
            return
        self._answer(Done(done="redraw"))

    def _load(self, command: Load) -> None:
        self._progress.set(State.LOADING)
        self._folder = str(Path(command.path).parent)
        try:
            if command.seal is not None:
                sandbox.seal(command.seal.hidden, self._folder, command.seal.files, command.cache)
        except OSError as error:
            self._fail(RankFault(kind="sandbox", text=f"the sandbox could not be closed: {error}"))
            return
        os.environ["PKB_CACHE_DIR"] = command.cache
        os.environ["TORCH_EXTENSIONS_DIR"] = str(build.extensions_dir(command.solution_sha256))
        build.install_public_helpers()
        watch = Watch()
        try:
            solution = _import_solution(Path(command.path))
        except BaseException as error:
            self._fail(_import_fault(error, command.path))
            return
        fault = _contract_fault(solution, command.num_arguments)
        if fault is not None:
            self._fail(fault)
            return
        self._caller = calls.Caller(
            solution=solution,
            draws=self._draws,
            stream=self._stream,
            device=self._device,
            progress=self._progress,
            max_result_bytes=self._max_result_bytes,
            writes=self._writes,
            watch=watch,
            folder=self._folder,
        )
        made = tuple(Build(name=b.name, arch=b.arch, seconds=b.seconds, cached=b.cached, log=b.log) for b in builds())
        self._answer(LoadAnswer(done="load", builds=made))

    def _answer_calls(self, run: Callable[[calls.Caller], calls.Answer]) -> None:
        assert self._caller is not None, "the judge loads a candidate before it calls it"
        try:
            answer = run(self._caller)
            payloads = [wire.raw_bytes(tensor.cpu()) for tensor in answer.tensors]
        except BaseException as error:
            self._fail(_call_fault(error, self._caller.call, self._folder))
            return
        finally:
            symm.set_after_barrier(None)
        self._answer(answer.header, payloads)

    def _answer(self, header: Record, payloads: Sequence[memoryview] = ()) -> None:
        self._send(header.model_dump(mode="json"), payloads)

    def _fail(self, fault: RankFault) -> None:
        self._send({"fault": fault.model_dump()})

    def _send(self, header: wire.Header, payloads: Sequence[memoryview] = ()) -> None:
        if os.getpid() != self._pid:
            # A process that the candidate has forked came back from its call: one rank, one answer.
            os._exit(1)
        try:
            wire.send(self._control, {**header, "ticket": self._ticket}, payloads)
        except OSError as error:
            raise _LostChannelError from error


@contextmanager
def _folder_in_view(command: Prepare) -> Iterator[Path]:
    """The problem's folder, or a copy of it for as long as it is read where a sandbox covers the folder."""
    folder = Path(command.problem)
    if folder.is_dir():
        yield folder
        return
    with TemporaryDirectory() as parent:
        copy = Path(parent, folder.name)
        copy.mkdir()
        for name, text in command.files.items():
            (copy / name).write_text(text, encoding="utf-8")
        yield copy


class _Groups:
    """Process groups of a rank; those that a problem asks for again and again are made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], Any] = {}

    def put_into(self, value: Any, rank: int) -> Any:
        """Arguments in which each `Group` is replaced by the process group of its part that this rank is in."""
        if isinstance(value, Group):
            for part in value.parts:
                if part not in self._made:
                    # new_group is collective over all ranks, for every part in the same order.
                    self._made[part] = dist.new_group(list(part), timeout=_GROUP_TIMEOUT)
            return self._made[value.part_of(rank)]
        if type(value) in (tuple, list):
            return type(value)([self.put_into(item, rank) for item in value])
        if type(value) is dict:
            return {key: self.put_into(item, rank) for key, item in value.items()}
        return value


def _maker(
    problem: Problem, inputs: Callable[..., tuple[Any, ...]], dtype: Dtype, device: torch.device, groups: _Groups
) -> Callable[[DrawPlan], tuple[Any, ...]]:
    """A function that draws this rank's arguments of a problem."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sizes = problem.sizes

    def make(plan: DrawPlan) -> tuple[Any, ...]:
        draw = make_draw(
            DrawSeeds(own=plan.own_seed, shared=plan.shared_seed),
            rank=rank,
            world_size=world_size,
            dtype=dtype,
            index=plan.index,
            exact=plan.exact,
            device=str(device),
        )
        drawn: tuple[Any, ...] = groups.put_into(inputs(sizes[plan.size], draw), rank)
        return drawn

    return make


def _import_solution(path: Path) -> Any:
    """Import the candidate and return what it calls `solution`, or None."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("pkb_candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pkb_candidate"] = module
    spec.loader.exec_module(module)
    return getattr(module, "solution", None)


def _import_fault(error: BaseException, path: str) -> RankFault:
    """Why the candidate could not be imported."""
    log = _traceback(error)
    compiling = _compile_error(error)
    if compiling is not None:
        return _compile_fault(compiling)
    where = f"while it was imported{_place(error, str(Path(path).parent))}"
    if isinstance(error, SystemExit):
        return RankFault(kind="exit", text=f"called sys.exit({_short(error.code)}) {where}", log=log)
    if _is_out_of_memory(error):
        return RankFault(kind="out_of_memory", text=f"out of memory {where}{_message(error)}", log=log)
    if isinstance(error, SyntaxError) and error.filename == path:
        return RankFault(kind="syntax", text=f"the file is not valid Python{_message(error)}", log=log)
    return RankFault(kind="import", text=f"{type(error).__name__} {where}{_message(error)}", log=log)


def _compile_error(error: BaseException) -> CompileError | None:
    """The error of a compiler that an exception stands for: ours, Triton's or that of torch's extension builder."""
    if isinstance(error, CompileError):
        return error
    # By name: Triton need not be installed, and is not imported for this.
    kind = type(error)
    if kind.__module__.startswith("triton.") and kind.__name__ == "CompilationError":
        return CompileError("the Triton kernel", str(error))
    if kind is RuntimeError and str(error).startswith("Error building extension"):
        return CompileError("the extension", str(error))
    return None


def _compile_fault(error: CompileError, call: int | None = None) -> RankFault:
    log = error.log[-_MAX_LOG_CHARS:]
    return RankFault(kind="compile", text=str(error)[:_MAX_COMPILE_CHARS], log=log, call=call)


def _contract_fault(solution: Any, num_arguments: int | None) -> RankFault | None:
    """What keeps `solution` from being called as the problem calls it."""
    if solution is None:
        return RankFault(kind="no_solution", text="the file defines no `solution`")
    if not callable(solution):
        return RankFault(kind="no_solution", text=f"`solution` is of type {type(solution).__name__}, not a function")
    if num_arguments is None:
        return None
    try:
        signature = inspect.signature(solution)
    except ValueError:
        return None  # A compiled function without a signature: the first call will tell.
    try:
        signature.bind(*[None] * num_arguments)
    except TypeError as error:
        return RankFault(
            kind="arity",
            text=f"solution{signature} cannot take the problem's {num_arguments} positional arguments: {error}",
        )
    return None


def _call_fault(error: BaseException, call: int, folder: str) -> RankFault:
    """How a call of the candidate ended without a result."""
    where = f"in call {call}{_place(error, folder)}"
    if _is_out_of_memory(error):
        # What the candidate's frames hold would be missing for the answer.
        traceback.clear_frames(error.__traceback__)
        text = f"out of memory {where}{_message(error)}"
        return RankFault(kind="out_of_memory", text=text, log=_traceback(error), call=call)
    log = _traceback(error)
    if isinstance(error, SystemExit):
        return RankFault(kind="exit", text=f"called sys.exit({_short(error.code)}) {where}", log=log, call=call)
    compiling = _compile_error(error)
    if compiling is not None:
        return _compile_fault(compiling, call)
    text = f"{type(error).__name__} {where}{_message(error)}"
    return RankFault(kind="exception", text=text, log=log, call=call)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's allocator on the CPU raises a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in _message(error) for words in _NO_MEMORY)


def _message(error: BaseException) -> str:
    """What an exception says, on one line and behind a colon; empty when it says nothing."""
    try:
        text = str(error)
    except Exception as broken:
        text = f"its message cannot be shown ({type(broken).__name__} in __str__)"
    return f": {_one_line(text)}" if text else ""


def _place(error: BaseException, folder: str) -> str:
    """The innermost line of the candidate's own that an exception passed."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(folder):
            place = f" at line {line} of {file.name}"
    return place


def _short(value: object) -> str:
    """A value for a message; the candidate chose it, so its repr may be anything."""
    return _one_line(repr(value)) if value is None or isinstance(value, (int, str)) else f"a {type(value).__name__}"


def _one_line(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_TEXT_CHARS].split())
    return line if len(line) <= _MAX_TEXT_CHARS else f"{line[:_MAX_TEXT_CHARS]}..."


def _traceback(error: BaseException) -> str:
    """The traceback from the candidate's first frame on, without the judge's own frames."""
    report = traceback.TracebackException.from_exception(error)
    own = str(Path(__file__).parent)
    frames = list(report.stack)
    first = next((i for i, f in enumerate(frames) if not f.filename.startswith((own, "<frozen"))), 0)
    report.stack = traceback.StackSummary.from_list(frames[first:])
    lines = "".join(report.format()).splitlines()
    return "\n".join(line[:_MAX_LINE_CHARS] for line in lines)[-_MAX_LOG_CHARS:]
