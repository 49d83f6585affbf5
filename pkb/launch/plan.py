"""What the judge asks of a rank, as frozen records. Policy is made by the judge; ranks execute it."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, TypeAdapter

from pkb.records.base import Record
from pkb.records.verdict import DeviceMode

NCCL_KERNEL = re.compile(r"^ncclDevKernel|^ncclKernel|^ncclSymk?(?:Dev)?Kernel")
COLLECTIVE = re.compile(
    r"^(?:c10d::|_c10d_functional::|symm_mem::)(?!barrier)|^(?:gloo|nccl|ucc|mpi):(?!barrier|all_reduce_barrier)"
    rf"|{NCCL_KERNEL.pattern}|^(?:void )?nvshmemi?_\w*(?:reduce|bcast|broadcast|alltoall|collect)"
)
"""Operators and kernels of collective libraries that move data; a barrier moves none."""


class Setup(Record):
    """Join the process group and take a device."""

    kind: Literal["setup"] = "setup"
    rank: int
    world_size: int
    mode: DeviceMode
    device_index: int
    """GPU of this rank; ignored on the CPU."""
    store: str
    """File of the rendezvous store, in a folder that belongs to this rank set alone."""
    num_threads: int


class DrawPlan(Record):
    """One draw of arguments that a rank has to make."""

    size: str
    index: int
    exact: bool
    own_seed: int
    shared_seed: int


class Prepare(Record):
    """Make the arguments of all trials, before anything of the candidate is loaded."""

    kind: Literal["prepare"] = "prepare"
    problem: str
    """Folder of the problem."""
    files: dict[str, str]
    """Its Python files by name, for a rank that cannot see that folder from within its sandbox."""
    dtype: Literal["bf16", "fp32"]
    draws: tuple[DrawPlan, ...]
    max_result_bytes: int
    """A returned tensor larger than this is not sent back."""


class Seal(Record):
    """What a rank in a sandbox closes before it loads a candidate."""

    hidden: tuple[str, ...]
    """Folders that appear empty from then on."""
    files: dict[str, str]
    """The candidate's files, names relative to its folder: to be written where that folder cannot be seen."""


class Load(Record):
    """Import the candidate."""

    kind: Literal["load"] = "load"
    path: str
    solution_sha256: str
    """Names the folder in which torch's own extension builder works for all ranks."""
    num_arguments: int | None
    """How many positional arguments `solution` has to accept; None when only the build is asked for."""
    cache: str
    """Folder for what it compiles; in a sandbox the only one that stays writable."""
    seal: Seal | None = None
    """Set in a sandbox."""


class CallPlan(Record):
    """One call of the candidate, with the delays that skew this rank against its peers."""

    draw: int
    """Position in the prepared draws."""
    host_delay_us: int = 0
    """Sleep before the call."""
    device_delay_us: int = 0
    """Device work before the call, which delays this rank's kernels but not its host."""
    late_read_us: int = 0
    """Wait between the call and the reading of its result: nobody may write to a returned tensor."""
    barrier_delays_us: tuple[int, ...] = ()
    """Delays after this rank has left the first, second, ... barrier of pkb.symm inside the call."""
    pause_line: int | None = None
    """Line of the candidate's Python to be delayed before; see `LinePauses.call`."""
    pause_us: int = 0
    """How long; 0 only notes the lines."""
    pause_on_device: bool = False
    """Delay this rank's kernels there, not its host."""
    occupy_us: int = 0
    """Work beside the call, on a stream of its own, that takes multiprocessors and memory bandwidth."""


class RunCalls(Record):
    """Call the candidate back to back, without host synchronization, and return every result."""

    kind: Literal["run_calls"] = "run_calls"
    calls: tuple[CallPlan, ...]


class Redraw(Record):
    """Draw arguments for timed calls, in place of those that were drawn for the block before."""

    kind: Literal["redraw"] = "redraw"
    size: str
    first_index: int
    """Index of the first draw; the others follow."""
    own_seeds: tuple[int, ...]
    shared_seeds: tuple[int, ...]


class TimeBlock(Record):
    """Call the candidate back to back, once on each of the first arguments that were redrawn, and time it."""

    kind: Literal["time_block"] = "time_block"
    iterations: int = Field(ge=1)
    pick: int = Field(ge=0)
    """The call whose result is copied in stream order, for `TakeResult`."""
    start_ns: int
    """When to start, on the machine's monotonic clock, so that all ranks start together."""


class TakeResult(Record):
    """Send the result that the last block has copied. Apart, so that a block's answer takes no time to arrive."""

    kind: Literal["take_result"] = "take_result"


class Profile(Record):
    """Call the candidate twice, once under the profiler, and list what ran."""

    kind: Literal["profile"] = "profile"
    draw: int


class ListCollectives(Record):
    """List the library collectives that were called since a moment."""

    kind: Literal["list_collectives"] = "list_collectives"
    begin_ns: int
    """Of the machine's clock, nanoseconds since 1970."""


Command = Annotated[
    Setup | Prepare | Load | RunCalls | Redraw | TimeBlock | TakeResult | Profile | ListCollectives,
    Field(discriminator="kind"),
]
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


class RankFault(Record):
    """How a rank failed to do what it was asked; sent by the rank while it still can."""

    kind: Literal[
        "exception",
        "exit",
        "out_of_memory",
        "syntax",
        "import",
        "compile",
        "no_solution",
        "arity",
        "sandbox",
        "tampered",
    ]
    text: str
    """One line; of a compiler, the lines that matter."""
    log: str = ""
    """Traceback or compiler output."""
    call: int | None = None
    """Number of the call within its command, from 0."""


class Event(Record):
    """One entry of a profile."""

    name: str
    on_device: bool
    count: int
    time_us: float = 0.0
    """All of them together, without what runs inside of them; on the device where `on_device`."""


class BlockTime(Record):
    """Time of a block on one rank."""

    device_us: float | None = Field(default=None, ge=0)
    """Between events on the rank's stream; None on the CPU."""
    start_ns: int
    end_ns: int
    """Monotonic clock before the first call and after everything on the device had ended."""


class Build(Record):
    """One compilation that loading the candidate caused."""

    name: str
    arch: str
    seconds: float
    cached: bool
    log: str


class Done(Record):
    """Header of the answer to `Setup`, `Prepare` and `Redraw`."""

    done: Literal["setup", "prepare", "redraw"]


class CallsAnswer(Record):
    """Header of the answer to `RunCalls`; the results' bytes follow it."""

    done: Literal["run_calls"]
    results: tuple[dict[str, Any], ...]
    mutated: tuple[tuple[NonNegativeInt, NonNegativeInt], ...]
    """(call, argument) whose bits changed during the call."""
    changed_later: tuple[int, ...]
    """Tensors of the last call's result that changed after it had returned."""


class BlockAnswer(Record):
    """Header of the answer to `TimeBlock`."""

    done: Literal["time_block"]
    time: BlockTime


class ResultAnswer(Record):
    """Header of the answer to `TakeResult`; the result's bytes follow it."""

    done: Literal["take_result"]
    result: dict[str, Any]


class ProfileAnswer(Record):
    """Header of the answer to `Profile`."""

    done: Literal["profile"]
    events: tuple[Event, ...]
    collectives: dict[str, int]
    """Library collectives by torch's own count, in the profiled call and in one before it."""
    barriers: int
    """How many of the profiled call's collectives were barriers."""
    libraries: tuple[str, ...]
    """File names of the libraries that were loaded since the candidate was."""
    symbols: tuple[str, ...]
    """Functions that were looked up in native libraries through ctypes."""
    shares_memory: bool
    """The rank has mapped memory of its peers."""


class CollectivesAnswer(Record):
    """Header of the answer to `ListCollectives`."""

    done: Literal["list_collectives"]
    collectives: dict[str, int]


class LoadAnswer(Record):
    """Header of the answer to `Load`."""

    done: Literal["load"]
    builds: tuple[Build, ...]


LOST_CHANNEL = 71
"""Exit code of a rank that cannot answer because the candidate has closed its channel."""

Answer = Annotated[
    Done | LoadAnswer | CallsAnswer | BlockAnswer | ResultAnswer | ProfileAnswer | CollectivesAnswer,
    Field(discriminator="done"),
]
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


def check_answer(command: Command, header: dict[str, Any]) -> None:
    """Require that a header answers a command; the candidate can write to the channel that it came over.

    Raises:
        ValueError: it does not.
    """
    answer = _ANSWER.validate_python(header)
    if answer.done != command.kind:
        raise ValueError(f"an answer to {answer.done}, expected one to {command.kind}")
    if isinstance(command, RunCalls) and isinstance(answer, CallsAnswer):
        if len(answer.results) != len(command.calls):
            raise ValueError(f"{len(answer.results)} results of {len(command.calls)} calls")
        if any(call >= len(command.calls) for call, _ in answer.mutated):
            raise ValueError("an input was changed in a call that was not made")
    if (
        isinstance(command, TimeBlock)
        and isinstance(answer, BlockAnswer)
        and not command.start_ns <= answer.time.start_ns < answer.time.end_ns <= time.monotonic_ns()
    ):
        raise ValueError("a block that did not run between its start and now")


def max_payload_bytes(command: Command, max_result_bytes: int) -> int:
    """Most bytes that an answer to a command may carry when no result exceeds a bound."""
    if isinstance(command, RunCalls):
        return len(command.calls) * max_result_bytes
    if isinstance(command, TakeResult):
        return max_result_bytes
    return 0
