"""Blocks, warm-up and statistics on ranks that answer by a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from pkb.judging import audit
from pkb.judging.roofline import speed_of_light
from pkb.judging.schedule import DrawSpec, timed_secret
from pkb.judging.timing import Block, Blocks, clocks_disagree, speedup_interval, trusted_times_us
from pkb.launch.hardware import HardwareProfile, hardware_profile
from pkb.launch.plan import Redraw, TimeBlock
from pkb.launch.ranks import Layout, RankSet
from pkb.launch.wire import Message
from pkb.problems._find import get_problem
from pkb.problems._spec import Cost
from pkb.records.verdict import DeviceMode, Timing


class ScriptedRanks:
    """Two ranks whose iterations take what `time_us(block, rank)` says; they answer at once."""

    layout = Layout(DeviceMode.CPU, 2, num_threads=1, memory_bytes=0)

    def __init__(self, time_us: Callable[[int, int], float]) -> None:
        self.time_us = time_us
        self.commands: list[TimeBlock] = []
        self.redrawn: list[Sequence[Redraw]] = []

    def request(self, command: TimeBlock | Sequence[Redraw], deadline_s: float) -> list[Message]:
        if not isinstance(command, TimeBlock):
            self.redrawn.append(command)
            return []
        number = len(self.commands)
        self.commands.append(command)
        return [self._answer(command, self.time_us(number, rank)) for rank in range(2)]

    def _answer(self, command: TimeBlock, time_us: float) -> Message:
        end_ns = command.start_ns + int(time_us * 1e3 * command.iterations)
        header: dict[str, Any] = {
            "done": "time_block",
            "time": {"device_us": None, "start_ns": command.start_ns, "end_ns": end_ns},
        }
        return Message(header, bytearray())


def blocks_on(ranks: ScriptedRanks, max_calls: int = 1000) -> Blocks:
    secret = timed_secret(bytes(32), "tiny")
    return Blocks(cast(RankSet, ranks), get_problem("allreduce"), "tiny", secret, max_calls=max_calls, deadline_s=1.0)


def block(ranks_us: float, parent_us: float) -> Block:
    return Block(100, ranks_us, parent_us, DrawSpec("tiny", 0, exact=False))


def test_the_slowest_rank_counts() -> None:
    assert blocks_on(ScriptedRanks(lambda number, rank: 10.0 + 5.0 * rank)).run().time_us == pytest.approx(15.0)


def test_a_replay_draws_the_same_timed_calls_whatever_the_length_of_its_blocks() -> None:
    drawn = []
    for time_us in (50.0, 90.0):
        ranks = ScriptedRanks(lambda number, rank, time_us=time_us: time_us)
        blocks = blocks_on(ranks)
        blocks.warm_up()
        blocks.run()
        drawn.append([seed for commands in ranks.redrawn for seed in commands[1].own_seeds])
    fewest = min(len(seeds) for seeds in drawn)
    assert len(drawn[0]) != len(drawn[1])
    assert drawn[0][:fewest] == drawn[1][:fewest]
    assert timed_secret(bytes(32), "tiny") not in (bytes(32), timed_secret(bytes(32), "base"))


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


def test_a_block_has_no_more_calls_than_arguments_fit() -> None:
    blocks = blocks_on(ScriptedRanks(lambda number, rank: 1.0), max_calls=7)
    blocks.warm_up()
    assert blocks.iterations == 7


def test_every_call_of_every_block_gets_arguments_of_its_own() -> None:
    ranks = ScriptedRanks(lambda number, rank: 1.0)
    blocks = blocks_on(ranks)
    blocks.iterations = 50
    made = [blocks.run() for _ in range(3)]
    seeds = [seed for commands in ranks.redrawn for command in commands for seed in command.own_seeds]
    assert len(set(seeds)) == len(seeds) == 2 * sum(b.iterations for b in made)


def test_neither_the_end_of_a_block_nor_the_verified_call_can_be_foreseen() -> None:
    ranks = ScriptedRanks(lambda number, rank: 1.0)
    blocks = blocks_on(ranks)
    blocks.iterations = 1000
    made = [blocks.run() for _ in range(20)]
    assert len({b.iterations for b in made}) > 5
    assert all(900 <= b.iterations <= 1000 for b in made)
    assert len({command.pick for command in ranks.commands}) > 10


def test_where_ranks_report_too_little_the_judges_clock_counts() -> None:
    trusted = [block(10_000.0, 10_200.0)] * 3
    honest, forged = block(5000.0, 5250.0), block(500.0, 5300.0)
    assert trusted_times_us([honest, forged], trusted) == [50.0, pytest.approx(50.0)]
    assert not clocks_disagree([honest] * 3, trusted, "tiny")
    assert "judge's own clock" in clocks_disagree([forged] * 3, trusted, "tiny")


def test_one_late_answer_of_several_is_noise() -> None:
    trusted = [block(10_000.0, 10_200.0)] * 3
    assert not clocks_disagree([block(5000.0, 5250.0), block(5000.0, 40_000.0), block(5000.0, 5200.0)], trusted, "tiny")


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
