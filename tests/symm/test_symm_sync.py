"""Barriers and signals between rank processes: order, counts, channels, deadlines and the judge's callback."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from symm_ranks import run_ranks

from pkb import symm
from pkb.records.errors import UsageError


def _cross_barriers(num_rounds: int) -> None:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    values = [handle.peer(rank).numpy() for rank in range(handle.world_size)]
    own = values[handle.rank]
    for step in range(num_rounds):
        own[0] = step
        handle.barrier()
        assert [int(value[0]) for value in values] == [step] * handle.world_size
        handle.barrier()
    own[0] = 0
    handle.barrier()
    for step in range(num_rounds):
        own[0] = step
        handle.barrier()
        # One barrier a round: a peer is in this round or has begun the next.
        assert all(step <= int(value[0]) <= step + 1 for value in values)


@pytest.mark.parametrize(("world_size", "num_rounds"), [(1, 2000), (2, 2000), (4, 1000)])
def test_back_to_back_barriers_keep_ranks_in_step(world_size: int, num_rounds: int) -> None:
    run_ranks(_cross_barriers, world_size, num_rounds)


def _mix_handles_and_channels() -> None:
    first, second = (symm.rendezvous(symm.empty(2, dtype=torch.int64)) for _ in range(2))
    peer = (first.rank + 1) % first.world_size
    source = (first.rank - 1) % first.world_size
    for step in range(20):
        first.tensor.fill_(step)
        first.signal(peer, channel=1)
        second.tensor.fill_(-step)
        for channel in (0, 3, 3, 15):
            second.barrier(channel)
        first.barrier(channel=1)
        assert int(second.peer(peer)[0]) == -step
        first.wait(source, channel=1)
        assert int(first.peer(source)[1]) == step
        for handle in (second, first, first):
            handle.barrier()


def test_handles_channels_and_signals_do_not_mix() -> None:
    run_ranks(_mix_handles_and_channels, 4)


def _use_threads() -> list[int]:
    handle = symm.rendezvous(symm.empty(2, dtype=torch.int64))
    num_right = [0, 0]

    def step_through(channel: int) -> None:
        for step in range(60 + 20 * channel):
            handle.tensor[channel] = step
            handle.barrier(channel)
            seen = [int(handle.peer(rank)[channel]) for rank in range(handle.world_size)]
            num_right[channel] += seen == [step] * handle.world_size
            handle.barrier(channel)

    threads = [threading.Thread(target=step_through, args=(channel,)) for channel in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return num_right


def test_two_channels_work_at_once() -> None:
    assert run_ranks(_use_threads, 2) == [[60, 80]] * 2


def _play_ping_pong(num_rounds: int) -> list[int]:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    nxt, previous = (handle.rank + 1) % handle.world_size, (handle.rank - 1) % handle.world_size
    seen = []
    for step in range(num_rounds):
        if handle.rank > 0 or step > 0:
            handle.wait(previous)
            seen.append(int(handle.tensor))
        # The peer reads before it signals on, so its buffer is free again.
        handle.peer(nxt).fill_(handle.rank + 100 * step)
        handle.signal(nxt)
    if handle.rank == 0:
        handle.wait(previous)
        seen.append(int(handle.tensor))
    return seen


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_n_signals_match_n_waits(world_size: int) -> None:
    rows = run_ranks(_play_ping_pong, world_size, 300)
    for rank, seen in enumerate(rows):
        assert seen == [(rank - 1) % world_size + 100 * step for step in range(300)]


def _signal_twice() -> None:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    handle.tensor.fill_(-1)
    handle.barrier()
    for step in range(200):
        if handle.rank == 0:
            handle.signal(1, channel=2)
            handle.signal(1, channel=2)
            assert int(handle.peer(1)) == step, "the second signal went out before the first was taken"
        else:
            handle.tensor.fill_(step)
            handle.wait(0, channel=2)
            handle.wait(0, channel=2)
        handle.barrier()
    if handle.rank == 0:
        symm.set_timeout(0.05)
        handle.signal(1, channel=2)
        with pytest.raises(TimeoutError) as caught:
            handle.signal(1, channel=2)
        assert str(caught.value) == (
            "signal on channel 2 timed out after 0.05 s on rank 0 of 2: rank 1 has not taken the last one"
            " (expected epoch 401, seen 400)."
        )


def test_a_second_signal_waits_until_the_first_is_taken() -> None:
    run_ranks(_signal_twice, 2)


def _miss_a_barrier(absent: tuple[int, ...]) -> str:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    handle.barrier(channel=5)
    handle.barrier(channel=5)
    dist.barrier()
    if handle.rank in absent:
        return ""
    symm.set_timeout(2)
    with pytest.raises(TimeoutError) as caught:
        handle.barrier(channel=5)
    return str(caught.value)


@pytest.mark.parametrize(
    ("absent", "what"),
    [
        ((2,), "rank 2 has not arrived (expected epoch 3, seen 2)."),
        ((0, 3), "ranks 0, 3 have not arrived (expected epoch 3, seen 2, 2)."),
    ],
    ids=["one absent", "two absent"],
)
def test_a_barrier_that_nobody_joins_names_the_missing(absent: tuple[int, ...], what: str) -> None:
    messages = run_ranks(_miss_a_barrier, 4, absent)
    for rank, message in enumerate(messages):
        head = f"barrier on channel 5 timed out after 2 s on rank {rank} of 4: "
        assert message == ("" if rank in absent else head + what)


def _wait_in_vain() -> str:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    if handle.rank == 1:
        handle.signal(0, channel=4)
        return ""
    handle.wait(1, channel=4)
    symm.set_timeout(0.05)
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        handle.wait(1, channel=4)
    assert time.monotonic() - started >= 0.05
    return str(caught.value)


def test_a_wait_without_a_signal_names_the_peer() -> None:
    assert run_ranks(_wait_in_vain, 2)[0] == (
        "wait on channel 4 timed out after 0.05 s on rank 0 of 2: rank 1 has not signaled (expected epoch 2, seen 1)."
    )


def _count_callbacks() -> list[int]:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    calls = []
    symm.set_after_barrier(lambda: calls.append(int(handle.peer(0))))
    handle.tensor.fill_(7)
    handle.barrier()
    handle.signal(handle.rank)
    assert len(calls) == 1
    handle.wait(handle.rank)
    symm.set_after_barrier(None)
    handle.barrier()
    return calls


def test_the_callback_runs_after_barrier_and_wait_until_taken_away() -> None:
    assert run_ranks(_count_callbacks, 2) == [[7, 7]] * 2


def _ask_for_too_much() -> None:
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64))
    for peer in (-1, 1):
        for request in (handle.peer, handle.signal, handle.wait):
            with pytest.raises(UsageError, match=rf"peer rank {peer} is out of range: the group has 1 ranks"):
                request(peer)
    for channel in (-1, symm.NUM_CHANNELS):
        message = rf"channel {channel} is out of range: channels are 0 to 15"
        with pytest.raises(UsageError, match=message):
            handle.barrier(channel)
        with pytest.raises(UsageError, match=message):
            handle.signal(0, channel)
        with pytest.raises(UsageError, match=message):
            handle.wait(0, channel)
    assert repr(handle) == "Handle(rank 0 of 1, [1] torch.int64 on cpu)"


def test_ranks_and_channels_are_checked() -> None:
    run_ranks(_ask_for_too_much, 1)
