"""Calling a candidate: back to back on fresh contents with skew and poison, timed, or under the profiler."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from pkb import symm
from pkb.launch import wire
from pkb.launch.clock import Stream, spin_until
from pkb.launch.plan import (
    BlockAnswer,
    BlockTime,
    CallsAnswer,
    Event,
    Profile,
    ProfileAnswer,
    RunCalls,
    TimeBlock,
)
from pkb.launch.progress import ProgressPage, State
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
    call: int = 0
    """Number of the call that is running, for messages."""
    _buffers: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)
    _result_bytes: set[int] = field(default_factory=set)

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
            pristine = self.draws[call.draw]
            arguments = self._fill_buffers(pristine)
            self._poison(arguments)
            time.sleep(call.host_delay_us / 1e6)
            self.stream.delay(call.device_delay_us)
            self.progress.set(State.IN_CALL, number)
            symm.set_after_barrier(_delays(call.barrier_delays_us, self.stream))
            result = self.solution(*arguments)
            self.progress.set(State.RETURNED, number)
            self.stream.delay(call.late_read_us)
            description, returned = wire.describe(result, self.device, self.max_result_bytes)
            copies = [t.clone() for t in returned]
            results.append(description)
            tensors += copies
            self._result_bytes.update(t.numel() * t.element_size() for t in returned)
            mutated += [(number, i, flag) for i, flag in _differences(arguments, pristine)]
            if number == len(plan.calls) - 1:
                # Peers may still be running: what they write into a returned tensor from now on shows here.
                self.stream.delay(call.late_read_us)
                changed_later = [(i, ~_same(a, b)) for i, (a, b) in enumerate(zip(returned, copies, strict=True))]
        self.progress.set(State.WAITING_FOR_DEVICE, self.call)
        self.stream.synchronize()
        answer = CallsAnswer(
            done="run_calls",
            results=tuple(results),
            mutated=tuple((number, i) for number, i, flag in mutated if bool(flag)),
            changed_later=tuple(i for i, flag in changed_later if bool(flag)),
        )
        return Answer(answer, tensors)

    def time(self, plan: TimeBlock) -> Answer:
        """Time `iterations` calls back to back, arguments rotating over draws of different contents."""
        order = [self.draws[plan.draws[(plan.first + i) % len(plan.draws)]] for i in range(len(plan.draws))]
        arguments = itertools.islice(itertools.cycle(order), plan.iterations)
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
        timed = BlockTime(device_us=self.stream.elapsed_us(), start_ns=start_ns, end_ns=end_ns)
        description: wire.Header | None = None
        tensors: list[torch.Tensor] = []
        if plan.return_result:
            description, tensors = wire.describe(result, self.device, self.max_result_bytes)
        return Answer(BlockAnswer(done="time_block", time=timed, result=description), tensors)

    def profile(self, plan: Profile) -> Answer:
        """List the operators and kernels of one call."""
        self.progress.set(State.IN_CALL, 0)
        # torch.profiler.profile would do the same, but imports the compiler stack first (two seconds).
        with torch.autograd.profiler.profile(use_device="cuda" if self.device.type == "cuda" else None) as profile:
            self.solution(*self.draws[plan.draw])
            self.stream.synchronize()
        self.progress.set(State.RETURNED, 0)
        cpu = DeviceType.CPU
        counts = Counter((e.name, e.device_type != cpu) for e in profile.function_events)
        events = tuple(
            Event(name=name[:300], on_device=on_device, count=count)
            for (name, on_device), count in counts.most_common(_MAX_EVENTS)
        )
        return Answer(ProfileAnswer(done="profile", events=events))

    def _fill_buffers(self, pristine: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy a draw's tensors, in stream order, into the buffers that calls of these shapes share."""
        arguments = []
        for position, value in enumerate(pristine):
            if isinstance(value, torch.Tensor):
                key = (position, value.dtype, value.shape, value.stride())
                if key not in self._buffers:
                    self._buffers[key] = torch.empty_like(value)
                value = self._buffers[key].copy_(value)
            arguments.append(value)
        return tuple(arguments)

    def _poison(self, arguments: tuple[Any, ...]) -> None:
        """Leave NaN in the memory that the allocator hands out next, so that unwritten outputs show."""
        sizes = {t.numel() * t.element_size() for t in arguments if isinstance(t, torch.Tensor)}
        blocks = [
            torch.empty(size, dtype=torch.uint8, device=self.device)
            for size in sorted(sizes | self._result_bytes, reverse=True)
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


def _differences(arguments: tuple[Any, ...], pristine: tuple[Any, ...]) -> Iterator[tuple[int, torch.Tensor]]:
    """For each tensor argument its position and, computed in stream order, whether its bits have changed."""
    for position, (now, before) in enumerate(zip(arguments, pristine, strict=True)):
        if isinstance(before, torch.Tensor):
            yield position, ~_same(now, before)


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Whether two tensors of one shape and dtype have the same bits; a scalar on their device."""
    if left.dtype.is_complex:
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    if left.dtype.is_floating_point:
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
        left, right = left.view(integer), right.view(integer)
    return (left == right).all()
