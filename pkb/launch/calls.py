"""Calling a candidate: back to back on fresh contents with skew and poison, timed, or under the profiler."""

from __future__ import annotations

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
    COLLECTIVE,
    BlockAnswer,
    BlockTime,
    CallPlan,
    CallsAnswer,
    CollectivesAnswer,
    Event,
    ListCollectives,
    Profile,
    ProfileAnswer,
    ResultAnswer,
    RunCalls,
    TimeBlock,
)
from pkb.launch.progress import ProgressPage, State
from pkb.launch.watch import Watch, collectives_since
from pkb.problems._expected import Outcome
from pkb.problems._tree import map_tensors, same_bits
from pkb.records.base import Record

_MAX_EVENTS = 300
_MAX_NAME_CHARS = 300
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
    watch: Watch
    folder: str
    """Where the candidate's files lie."""
    call: int = 0
    """Number of the call that is running, for messages."""
    _result_bytes: set[int] = field(default_factory=set)
    _kept: tuple[wire.Header, list[torch.Tensor]] = field(default_factory=lambda: ({}, []))
    """Description and tensors of the result that a block has copied."""

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
            description, returned, copies = self._copy(filled.outcome(result))
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

        return self._pauses.call(self.solution, arguments, line=call.pause_line, pause=pause if call.pause_us else None)

    def time(self, plan: TimeBlock, draws: Sequence[tuple[Any, ...]]) -> Answer:
        """Time calls back to back, each on arguments that no call has seen before.

        One call's result, which the solution does not know beforehand, is kept for `take_result`; its copy counts.
        """
        picked = draws[plan.pick]
        # What the solution puts into a list in place of a tensor is not what it has written to that tensor.
        states = {name: map_tensors(picked[i], lambda t: t) for name, i in self.writes.in_place.items()}
        # Tuples: a solution that finds them through frames cannot take calls out of them.
        until_pick, after = tuple(draws[: plan.pick + 1]), tuple(draws[plan.pick + 1 : plan.iterations])
        solution = self.solution
        result = None
        self.stream.evict()
        self.stream.synchronize()
        self.progress.set(State.IN_CALL, 0)
        spin_until(plan.start_ns)
        start_ns = time.monotonic_ns()
        self.stream.start()
        for arguments in until_pick:
            result = solution(*arguments)
        description, _, copies = self._copy(Outcome(result, states) if states else result)
        self._kept = description, copies
        for arguments in after:
            solution(*arguments)
        self.stream.stop()
        self.stream.synchronize()
        end_ns = time.monotonic_ns()
        self.progress.set(State.RETURNED, plan.iterations - 1)
        timed = BlockTime(device_us=self.stream.elapsed_us(), start_ns=start_ns, end_ns=end_ns)
        return Answer(BlockAnswer(done="time_block", time=timed))

    def take_result(self) -> Answer:
        """The result of the picked call of the last block."""
        description, tensors = self._kept
        return Answer(ResultAnswer(done="take_result", result=description), tensors)

    def _copy(self, result: Any) -> tuple[wire.Header, list[torch.Tensor], list[torch.Tensor]]:
        """Description of a result, its tensors, and copies of them that are made in stream order."""
        description, returned = wire.describe(result, self.device, self.max_result_bytes)
        if any(t.device.type != self.device.type for t in returned):
            # Copies to the host may still be under way, and no stream orders the host behind them.
            self.stream.synchronize()
        return description, returned, [t.clone() for t in returned]

    def profile(self, plan: Profile) -> Answer:
        """List the operators and kernels of one call, and the collectives of another, which no profiler betrays."""
        self.progress.set(State.IN_CALL, 0)
        begin_ns = time.time_ns()
        self.solution(*self._buffers.fill(self.draws[plan.draw]).arguments)
        self.stream.synchronize()
        arguments = self._buffers.fill(self.draws[plan.draw]).arguments
        self.progress.set(State.IN_CALL, 1)
        profiled_ns = time.time_ns()
        # torch.profiler.profile would do the same, but imports the compiler stack first (two seconds).
        with torch.autograd.profiler.profile(use_device="cuda" if self.device.type == "cuda" else None) as profile:
            self.solution(*arguments)
            self.stream.synchronize()
        self.progress.set(State.RETURNED, 1)
        return Answer(
            ProfileAnswer(
                done="profile",
                events=_events(profile),
                collectives=collectives_since(begin_ns),
                barriers=sum(n for name, n in collectives_since(profiled_ns).items() if "barrier" in name),
                libraries=self.watch.libraries(),
                symbols=self.watch.symbols(),
                shares_memory=self.watch.shares_memory(),
            )
        )

    def list_collectives(self, plan: ListCollectives) -> Answer:
        """List what was called since a moment, by every thread."""
        found = collectives_since(plan.begin_ns)
        return Answer(CollectivesAnswer(done="list_collectives", collectives=found))

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


def _events(profile: Any) -> tuple[Event, ...]:
    """What a profile holds, by name; the most frequent."""
    counts: Counter[tuple[str, bool]] = Counter()
    times_us: Counter[tuple[str, bool]] = Counter()
    for event in profile.function_events:
        on_device = event.device_type != DeviceType.CPU
        key = (event.name[:_MAX_NAME_CHARS], on_device)
        counts[key] += 1
        times_us[key] += event.time_range.elapsed_us() if on_device else event.self_cpu_time_total
    # Collectives come first, so that a crowd of other names cannot push them out of the list.
    ordered = sorted(counts.most_common(), key=lambda entry: not COLLECTIVE.search(entry[0][0]))
    return tuple(
        Event(name=name, on_device=on_device, count=count, time_us=round(times_us[name, on_device], 3))
        for (name, on_device), count in ordered[:_MAX_EVENTS]
    )


def _delays(delays_us: tuple[int, ...], stream: Stream) -> Callable[[], None] | None:
    """A callback that delays by each of the given times once, in order."""
    if not delays_us:
        return None
    left = iter(delays_us)
    return lambda: stream.delay(next(left, 0))
