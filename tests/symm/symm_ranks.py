"""Runs a function on W rank processes under plain torch.distributed (gloo), with a deadline."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# A server that has torch loaded forks ranks in a fraction of a second each.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "torch", "torch.distributed"])


@dataclass(frozen=True)
class Outcome:
    """How one rank ended."""

    value: Any = None
    error: str = ""
    """Traceback, or what became of the process; empty after a normal return."""


def run_ranks(target: Callable[..., Any], world_size: int, *args: Any, deadline_s: float = 60.0) -> list[Any]:
    """Call `target(*args)` on every rank and return the ranks' values; any failure fails the test."""
    outcomes = outcomes_of_ranks(target, world_size, *args, deadline_s=deadline_s)
    failed = {rank: outcome.error for rank, outcome in enumerate(outcomes) if outcome.error}
    assert not failed, "\n".join(f"rank {rank}: {error}" for rank, error in failed.items())
    return [outcome.value for outcome in outcomes]


def outcomes_of_ranks(
    target: Callable[..., Any], world_size: int, *args: Any, deadline_s: float = 60.0
) -> list[Outcome]:
    """Call `target(*args)` on every rank; ranks that outlast the deadline are killed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world_size):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_rank_main, args=(sender, target, args, rank, world_size, str(Path(folder) / "store"))
            )
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return _collect([receiver for _, receiver in ranks], deadline_s)
        finally:
            for process, receiver in ranks:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
                receiver.close()


def _collect(receivers: list[Connection], deadline_s: float) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    end = time.monotonic() + deadline_s
    pending = {receiver: rank for rank, receiver in enumerate(receivers)}
    while pending and time.monotonic() < end:
        for ready in wait(list(pending), timeout=end - time.monotonic()):
            rank = pending.pop(ready)  # type: ignore[call-overload]
            try:
                outcomes[rank] = receivers[rank].recv()
            except EOFError:
                outcomes[rank] = Outcome(error="died without a word")
    late = Outcome(error=f"not done after {deadline_s} s")
    return [outcomes.get(rank, late) for rank in range(len(receivers))]


def _rank_main(
    sender: Connection,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
        sender.send(Outcome(value=target(*args)))
    except BaseException:
        sender.send(Outcome(error=traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
