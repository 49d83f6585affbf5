"""Rank processes on gloo that are started once and run many references."""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from pkb.problems._spec import Group

DEADLINE_S = 120.0
LEAVE_S = 10.0

Calls = list[list[tuple[Any, ...]]]
"""Arguments by call and rank."""


@dataclass(frozen=True)
class Request:
    """Calls of one rank."""

    path: Path
    world_size: int
    store: Path
    calls: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Reply:
    """What one call of one rank left behind."""

    result: Any
    arguments: tuple[Any, ...]
    """The arguments as they are after the call."""


class GlooPool:
    """Ranks whose processes start when they are first needed, and again after a failure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._world_size = 0
        self._num_stores = 0

    def run(self, path: Path, calls: Calls, world_size: int) -> list[list[Reply]]:
        """Replies by call and rank of the `solution` in a file.

        Raises:
            RuntimeError: a rank raised (its traceback is the message) or did not answer in time.
        """
        self._start(world_size)
        if world_size != self._world_size:
            self._world_size = world_size
            self._num_stores += 1
        store = self._folder / f"store-{self._num_stores}"
        connections = [connection for _, connection in self._ranks[:world_size]]
        for rank, connection in enumerate(connections):
            own = [arguments[rank] for arguments in calls]
            connection.send_bytes(_pack(Request(path, world_size, store, own)))
        try:
            replies = _receive(connections)
        except RuntimeError:
            self._kill()
            raise
        return [list(of_call) for of_call in zip(*replies, strict=True)]

    def close(self) -> None:
        """Let the processes end; kill those that do not."""
        for _, connection in self._ranks:
            connection.send_bytes(b"")
        for process, _ in self._ranks:
            process.join(LEAVE_S)
        self._kill()

    def _start(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(len(self._ranks), world_size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))

    def _kill(self) -> None:
        for process, connection in self._ranks:
            process.kill()
            process.join()
            connection.close()
        self._ranks = []
        self._world_size = 0


def _pack(value: Any) -> bytes:
    """Any value as bytes; plain pickle cannot do tensors of every dtype."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _unpack(message: bytes) -> Any:
    return torch.load(io.BytesIO(message), weights_only=False)


def _receive(connections: list[Connection]) -> list[list[Reply]]:
    """Replies by rank, taken as they come, so that the first rank that failed ends the wait."""
    deadline = time.monotonic() + DEADLINE_S
    replies: dict[int, list[Reply]] = {}
    while len(replies) < len(connections):
        waiting = [c for rank, c in enumerate(connections) if rank not in replies]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = [rank for rank in range(len(connections)) if rank not in replies]
            raise RuntimeError(f"ranks {missing} did not answer within {DEADLINE_S:g} s.")
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = connections.index(connection)
            try:
                reply = _unpack(connection.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} died.") from None
            if isinstance(reply, str):
                raise RuntimeError(f"rank {rank} raised:\n{reply}")
            replies[rank] = reply
    return [replies[rank] for rank in range(len(connections))]


def _serve(rank: int, connection: Connection) -> None:
    """Body of a rank process: answer requests until an empty one comes."""
    # gloo would otherwise look the host name up, which some machines cannot resolve.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch.distributed as dist

    torch.set_num_threads(1)
    store: Path | None = None
    groups: dict[Group, Any] = {}
    while message := connection.recv_bytes():
        request: Request = _unpack(message)
        try:
            if request.store != store:
                if store is not None:
                    dist.destroy_process_group()
                    groups.clear()
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{request.store}",
                    rank=rank,
                    world_size=request.world_size,
                    timeout=timedelta(seconds=DEADLINE_S / 2),
                )
                store = request.store
            solution = _load(request.path)
            replies = [_call(solution, arguments, groups) for arguments in request.calls]
            connection.send_bytes(_pack(replies))
        except Exception:
            connection.send_bytes(_pack(traceback.format_exc()))
    if store is not None:
        dist.destroy_process_group()


def _call(solution: Callable[..., Any], arguments: tuple[Any, ...], groups: dict[Group, Any]) -> Reply:
    result = solution(*_with_groups(arguments, groups))
    return Reply(result, arguments)


def _with_groups(value: Any, groups: dict[Group, Any]) -> Any:
    """The same tensors in new containers, with process groups in place of every `Group`."""
    if isinstance(value, Group):
        return _process_group(value, groups)
    if type(value) in (tuple, list):
        return type(value)([_with_groups(item, groups) for item in value])
    if type(value) is dict:
        return {key: _with_groups(item, groups) for key, item in value.items()}
    return value


def _process_group(group: Group, groups: dict[Group, Any]) -> Any:
    """The part that this rank is in; every rank makes all parts in the same order, as torch demands."""
    import torch.distributed as dist

    if group not in groups:
        made = [dist.new_group(list(part)) for part in group.parts]
        groups[group] = next(pg for pg, part in zip(made, group.parts, strict=True) if dist.get_rank() in part)
    return groups[group]


def _load(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"_reference_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    solution: Callable[..., Any] = module.solution
    return solution
