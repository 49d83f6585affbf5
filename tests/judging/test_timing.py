"""Blocks, warm-up and statistics on ranks that answer by a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pkb.judging import audit
from pkb.judging.roofline import speed_of_light
from pkb.judging.timing import Blocks, speedup_interval
from pkb.launch.hardware import HardwareProfile, hardware_profile
from pkb.launch.plan import TimeBlock
from pkb.launch.ranks import RankSet
from pkb.launch.wire import Message
from pkb.problems._spec import Cost
from pkb.records.verdict import Timing


class ScriptedRanks:
    """Two ranks whose iterations take what `time_us(block, rank)` says."""

    def __init__(self, time_us: Callable[[int, int], float]) -> None:
        self.time_us = time_us
        self.commands: list[TimeBlock] = []

    def request(self, command: TimeBlock, deadline_s: float) -> list[Message]:
        number = len(self.commands)
        self.commands.append(command)
        return [self._answer(command, self.time_us(number, rank)) for rank in range(2)]

    def _answer(self, command: TimeBlock, time_us: float) -> Message:
        end_ns = command.start_ns + int(time_us * 1e3 * command.iterations)
        header: dict[str, Any] = {
            "done": "time_block",
            "time": {"device_us": None, "start_ns": command.start_ns, "end_ns": end_ns},
            "result": None,
        }
        return Message(header, bytearray())


def blocks_on(ranks: ScriptedRanks) -> Blocks:
    return Blocks(cast(RankSet, ranks), [4, 5, 6], deadline_s=1.0)


def test_the_slowest_rank_counts() -> None:
    block = blocks_on(ScriptedRanks(lambda number, rank: 10.0 + 5.0 * rank)).run(iterations=100)
    assert block.time_us == pytest.approx(15.0)


def test_warm_up_makes_blocks_long_enough_and_waits_until_times_are_stable() -> None:
    ranks = ScriptedRanks(lambda number, rank: 100.0 if number < 2 else 50.0)
    blocks = blocks_on(ranks)
    blocks.warm_up()
    assert blocks.iterations * 50.0 >= 0.8 * 20_000
    assert len(ranks.commands) >= 5, "stopped while times still fell"


def test_warm_up_ends_although_times_never_settle() -> None:
    ranks = ScriptedRanks(lambda number, rank: 100.0 * (1 + number % 2))
    blocks_on(ranks).warm_up()
    assert len(ranks.commands) <= 6


def test_draws_rotate_from_block_to_block_and_the_last_is_named() -> None:
    ranks = ScriptedRanks(lambda number, rank: 1.0)
    blocks = blocks_on(ranks)
    first, second = blocks.run(iterations=4), blocks.run(iterations=4)
    assert [command.first for command in ranks.commands] == [0, 1]
    assert (first.last_draw, second.last_draw) == (4, 5)


def test_interval_holds_the_ratio_of_medians_and_shrinks_without_noise() -> None:
    quiet = speedup_interval([20.0] * 10, [10.0] * 10)
    assert (quiet.low, quiet.high) == (2.0, 2.0)
    noisy = speedup_interval([20.0, 22.0, 18.0, 25.0, 20.0], [10.0, 9.0, 12.0, 10.0, 11.0])
    assert noisy.low < 2.0 < noisy.high


def test_speed_of_light_is_the_largest_bound() -> None:
    hardware = HardwareProfile(400e9, 4e12, 1e15, 5e14, 1e-6)
    assert speed_of_light(Cost(4e6, 4e6, 1e6), "bf16", hardware).bound == "link"
    assert speed_of_light(Cost(0, 4e9, 1e6), "bf16", hardware).time_us == pytest.approx(1000.0)
    assert speed_of_light(Cost(4e3, 4e6, 1e13), "fp32", hardware).time_us == pytest.approx(20_000.0)
    assert speed_of_light(Cost(4.0, 4.0, 4.0), "bf16", hardware).bound == "latency"


def test_known_gpus_have_a_profile_and_others_none() -> None:
    assert hardware_profile("NVIDIA H200") is not None
    assert hardware_profile("Some Other GPU") is None


def timing(**fields: Any) -> Timing:
    return Timing.model_validate({"size": "base", "candidate_us": 100.0, "iterations": 200, **fields})


def test_faster_than_light_is_refused() -> None:
    assert audit.too_fast(timing(sol_us=101.0, sol_bound="link"))
    assert not audit.too_fast(timing(sol_us=99.0, sol_bound="link"))
    assert not audit.too_fast(timing())


def test_a_clock_that_hides_work_is_found_and_noise_is_not() -> None:
    assert audit.clocks_disagree(timing(parent_us=300.0))
    assert not audit.clocks_disagree(timing(parent_us=140.0))
    assert not audit.clocks_disagree(timing(parent_us=250.0, iterations=10))
    assert not audit.clocks_disagree(timing(parent_us=None))
