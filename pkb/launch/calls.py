"""Calling a candidate: back to back on fresh contents with skew and poison, timed, or under the profiler."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from pkb import symm
from pkb.launch import wire
from pkb.launch.arguments import Buffers, Filled, Writes
from pkb.launch.clock import Stream, spin_until
from pkb.launch.pauses import LinePauses
from pkb.launch.plan import (
    BlockAnswer,
    BlockTime,
    CallPlan,
    CallsAnswer,
    Event,
    Profile,
    ProfileAnswer,
    RunCalls,
    TimeBlock,
)
from pkb.launch.progress import ProgressPage, State
from pkb.launch.segments import Agree, time_segments
from pkb.problems._tree import fresh_containers, same_bits
from pkb.records.base import Record

_MAX_EVENTS = 300
_POISON_BYTE = 0xFF  # NaN in every floating dtype.


@dataclass(frozen=True)
class Answer:
    """What a rank sends back: a header, and tensors that follow it as raw bytes."""

    header: Record
    tensors: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Caller:
    """Calls one candidate with prepared arguments."""

    solution: Callable[..., Any]
    draws: Sequence[tuple[Any, ...]]
    stream: Stream
    device: torch.device
    progress: ProgressPage
    max_result_bytes: int
    writes: Writes
    folder: str
    """Where the candidate's files lie."""
    agree: Agree
    """The largest of all ranks' numbers; called by all ranks alike."""
    call: int = 0
    """Number of the call that is running, for messages."""
    _result_bytes: set[int] = field(default_factory=set)
    _buffers_of_draw: dict[int, Buffers] = field(default_factory=dict)
    """Fresh contents for timed calls that write to their arguments."""

    def __post_init__(self) -> None:
        """Make the buffers that all calls share."""
        self._buffers = Buffers(self.writes)
        self._pauses = LinePauses(self.folder)

    def run(self, plan: RunCalls) -> Answer:
        """Call back to back; every result is copied in stream order and sent at the end.

        Arguments lie in the same buffers for every call of the same shapes, with new contents each time, so
        an answer remembered by address is a wrong one.
        """
        results: list[wire.Header] = []
        tensors: list[torch.Tensor] = []
        mutated: list[tuple[int, int, torch.Tensor]] = []
        changed_later: list[tuple[int, torch.Tensor]] = []
        for number, call in enumerate(plan.calls):
            self.call = number
            filled = self._buffers.fill(self.draws[call.draw])
            self._poison(filled)
            time.sleep(call.host_delay_us / 1e6)
            self.stream.delay(call.device_delay_us)
            self.progress.set(State.IN_CALL, number)
            symm.set_after_barrier(_delays(call.barrier_delays_us, self.stream))
            result = self._call(filled.arguments, call)
            self.progress.set(State.RETURNED, number)
            self.stream.delay(call.late_read_us)
            description, returned = wire.describe(filled.outcome(result), self.device, self.max_result_bytes)
            if any(t.device.type != self.device.type for t in returned):
                # Copies to the host may still be under way, and no stream orders the host behind them.
                self.stream.synchronize()
            copies = [t.clone() for t in returned]
            results.append(description)
            tensors += copies
            self._result_bytes.update(t.numel() * t.element_size() for t in returned)
            mutated += [(number, i, flag) for i, flag in filled.differences()]
            if number == len(plan.calls) - 1:
                # Peers may still be running: what they write into a returned tensor from now on shows here.
                self.stream.delay(call.late_read_us)
                changed_later = [(i, ~same_bits(a, b)) for i, (a, b) in enumerate(zip(returned, copies, strict=True))]
        self.progress.set(State.WAITING_FOR_DEVICE, self.call)
        self.stream.synchronize()
        answer = CallsAnswer(
            done="run_calls",
            results=tuple(results),
            mutated=tuple((number, i) for number, i, flag in mutated if bool(flag)),
            changed_later=tuple(i for i, flag in changed_later if bool(flag)),
        )
        return Answer(answer, tensors)

    def _call(self, arguments: tuple[Any, ...], call: CallPlan) -> Any:
        self.stream.occupy(call.occupy_us)
        if call.pause_line is None:
            return self.solution(*arguments)

        def pause() -> None:
            if call.pause_on_device:
                self.stream.delay(call.pause_us)
            else:
                time.sleep(call.pause_us / 1e6)

        return self._pauses.call(self.solution, arguments, line=call.pause_line, pause=pause)

    def time(self, plan: TimeBlock) -> Answer:
        """Time `iterations` calls, arguments rotating over draws of different contents.

        Calls run back to back. Where they write to their arguments, they do so in segments, between which the
        contents are restored outside of the measured time.
        """
        order = [plan.draws[(plan.first + i) % len(plan.draws)] for i in range(len(plan.draws))]
        timed, result = self._time_restored(order, plan) if self.writes else self._time_in_one(order, plan)
        description: wire.Header | None = None
        tensors: list[torch.Tensor] = []
        if plan.return_result:
            description, tensors = wire.describe(result, self.device, self.max_result_bytes)
        return Answer(BlockAnswer(done="time_block", time=timed, result=description), tensors)

    def _time_in_one(self, order: Sequence[int], plan: TimeBlock) -> tuple[BlockTime, Any]:
        rotation = itertools.islice(itertools.cycle(order), plan.iterations)
        # A call may replace elements of the lists that it gets, so each gets lists of its own.
        arguments = [fresh_containers(self.draws[draw]) for draw in rotation]
        solution = self.solution
        result = None
        self.stream.synchronize()
        self.progress.set(State.IN_CALL, 0)
        spin_until(plan.start_ns)
        start_ns = time.monotonic_ns()
        self.stream.start()
        for argument in arguments:
            result = solution(*argument)
        self.stream.stop()
        self.stream.synchronize()
        end_ns = time.monotonic_ns()
        self.progress.set(State.RETURNED, plan.iterations - 1)
        return BlockTime(device_us=self.stream.elapsed_us(), start_ns=start_ns, end_ns=end_ns), result

    def _time_restored(self, order: Sequence[int], plan: TimeBlock) -> tuple[BlockTime, Any]:
        def restore(draw: int) -> Filled:
            return self._buffers_of_draw.setdefault(draw, Buffers(self.writes)).fill(self.draws[draw])

        self.progress.set(State.IN_CALL, 0)
        spin_until(plan.start_ns)
        solution = (lambda *_: None) if plan.restore_only else self.solution
        timed, filled, result = time_segments(
            solution, restore, order, plan.iterations, stream=self.stream, agree=self.agree
        )
        self.progress.set(State.RETURNED, plan.iterations - 1)
        return timed, filled.outcome(result)

    def profile(self, plan: Profile) -> Answer:
        """List the operators and kernels of one call."""
        arguments = self._buffers.fill(self.draws[plan.draw]).arguments
        self.progress.set(State.IN_CALL, 0)
        # torch.profiler.profile would do the same, but imports the compiler stack first (two seconds).
        with torch.autograd.profiler.profile(use_device="cuda" if self.device.type == "cuda" else None) as profile:
            self.solution(*arguments)
            self.stream.synchronize()
        self.progress.set(State.RETURNED, 0)
        cpu = DeviceType.CPU
        counts = Counter((e.name, e.device_type != cpu) for e in profile.function_events)
        events = tuple(
            Event(name=name[:300], on_device=on_device, count=count)
            for (name, on_device), count in counts.most_common(_MAX_EVENTS)
        )
        return Answer(ProfileAnswer(done="profile", events=events))

    def _poison(self, filled: Filled) -> None:
        """Leave NaN in the memory that the allocator hands out next, so that unwritten outputs show."""
        blocks = [
            torch.empty(size, dtype=torch.uint8, device=self.device)
            for size in sorted(filled.sizes() | self._result_bytes, reverse=True)
            for _ in range(2)
            if size
        ]
        for block in blocks:
            block.fill_(_POISON_BYTE)


def _delays(delays_us: tuple[int, ...], stream: Stream) -> Callable[[], None] | None:
    """A callback that delays by each of the given times once, in order."""
    if not delays_us:
        return None
    left = iter(delays_us)
    return lambda: stream.delay(next(left, 0))
