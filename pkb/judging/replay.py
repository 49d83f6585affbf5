"""The reference run by all ranks in one process, with one of its collectives altered: what would a candidate return?

Each rank is a thread, and a stand-in takes the place of `torch.distributed`, so it needs no process group and no
second process. Used after a failure only; candidates never run here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as real_dist

from pkb.problems._expected import Outcome
from pkb.problems._spec import Group, Problem
from pkb.problems._tree import map_tensors

_WAIT_S = 5.0
"""Ranks that wait longer for a peer are given up: an altered run may take another way than its peers."""

Parts = list[torch.Tensor]


class Site(NamedTuple):
    """One collective of a reference, as its trace shows it."""

    number: int
    """Place among the collectives of a rank, from 0."""
    name: str
    """Such as `all_reduce`."""
    op: str
    """`SUM`, `MAX`, ...; empty where nothing is reduced."""
    group_size: int
    """Number of ranks that take part."""


@dataclass(frozen=True)
class Alteration:
    """A mistake in one collective: what a rank makes of the parts that it should receive."""

    site: Site
    key: Hashable
    """Tells it from other alterations of that site."""
    parts: Callable[[Parts, int], Parts] = lambda parts, own: parts
    """`parts(received, own)`: what is received instead, in group order; `own` is the rank's own place."""
    sends: Callable[[Parts], Parts] = lambda parts: parts
    """What is sent instead, where a rank sends a part to each."""
    op: str = ""
    """The reduction used instead; empty for the right one."""


def replay(problem: Problem, inputs: Sequence[tuple[Any, ...]], altered: Alteration) -> list[Any] | None:
    """Results of all ranks with one collective altered; None where the altered program fails."""
    found = _run(problem, inputs, altered)
    return None if found is None else found[0]


def trace(problem: Problem, inputs: Sequence[tuple[Any, ...]]) -> tuple[list[Any], list[list[Site]]] | None:
    """Results of the unaltered reference and the collectives of every rank; None where it cannot be replayed."""
    return _run(problem, inputs, None)


def _run(
    problem: Problem, inputs: Sequence[tuple[Any, ...]], altered: Alteration | None
) -> tuple[list[Any], list[list[Site]]] | None:
    exchange = _Exchange(len(inputs))
    ranks = [_Rank(rank, exchange, altered) for rank in range(len(inputs))]
    source = compile(problem.reference_path.read_text(encoding="utf-8"), str(problem.reference_path), "exec")
    in_place = problem.positions(problem.in_place)
    results: list[Any] = [None] * len(inputs)

    def run(rank: int) -> None:
        try:
            arguments = tuple(_argument(value, rank) for value in map_tensors(inputs[rank], torch.Tensor.clone))
            module = _module(source, problem.id, ranks[rank])
            result = module.solution(*arguments)
            states = {name: arguments[at] for name, at in in_place.items()}
            results[rank] = Outcome(result, states) if states else result
        # Whatever an altered program stumbles over, it is then no explanation.
        except Exception:
            exchange.give_up()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return None if exchange.is_given_up else (results, [rank.sites for rank in ranks])


def _argument(value: Any, rank: int) -> Any:
    return value.part_of(rank) if isinstance(value, Group) else value


def _module(source: Any, name: str, rank: _Rank) -> Any:
    """The reference as a module of its own, in which `dist` is a rank's stand-in."""
    module = ModuleType(f"_pkb_replay_{name}")
    exec(source, module.__dict__)
    module.__dict__["dist"] = rank
    return module


class _Exchange:
    """Where the threads leave values for each other."""

    def __init__(self, world_size: int) -> None:
        self.world = tuple(range(world_size))
        self.is_given_up = False
        self._values: dict[Hashable, Any] = {}
        self._changed = threading.Condition()

    def put(self, key: Hashable, value: Any) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: Hashable) -> Any:
        with self._changed:
            done = self._changed.wait_for(lambda: self.is_given_up or key in self._values, _WAIT_S)
            if not done or self.is_given_up:
                raise RuntimeError("a peer has failed")
            return self._values[key]

    def give_up(self) -> None:
        with self._changed:
            self.is_given_up = True
            self._changed.notify_all()


@dataclass(frozen=True)
class _Message:
    """A point-to-point operation, as `dist.P2POp` is."""

    operation: Any
    tensor: torch.Tensor
    peer: int


class _Done:
    """Work that is over."""

    def wait(self) -> None:
        pass


class _Rank:
    """Stands in for the module `torch.distributed` in the reference of one rank."""

    isend, irecv = "isend", "irecv"

    def __init__(self, rank: int, exchange: _Exchange, altered: Alteration | None) -> None:
        self.sites: list[Site] = []
        self._rank, self._exchange, self._altered = rank, exchange, altered
        self._counts: dict[Hashable, int] = {}

    def __getattr__(self, name: str) -> Any:
        # Types for annotations, reduction operators.
        return getattr(real_dist, name)

    def is_initialized(self) -> bool:
        return True

    def get_rank(self, group: Any = None) -> int:
        return self._members(group).index(self._rank)

    def get_world_size(self, group: Any = None) -> int:
        return len(self._members(group))

    def get_process_group_ranks(self, group: Any) -> list[int]:
        return list(self._members(group))

    def new_group(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(ranks)

    def all_reduce(self, tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> _Done:
        self._reduce_into(tensor, "all_reduce", tensor, op, group)
        return _Done()

    def reduce(self, tensor: torch.Tensor, dst: int, op: Any = None, group: Any = None) -> None:
        out = tensor if self._rank == dst else torch.empty_like(tensor)
        self._reduce_into(out, "reduce", tensor, op, group)

    def reduce_scatter_tensor(
        self, output: torch.Tensor, input: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> _Done:
        members = self._members(group)
        blocks = [block.reshape(output.shape) for block in input.reshape(-1).chunk(len(members))]
        site = self._site("reduce_scatter_tensor", op, group)
        received = self._deliver(site, self._sent(site, blocks), group)
        output.copy_(self._combined(site, received, group))
        return _Done()

    def all_gather_into_tensor(
        self, output: torch.Tensor, input: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> _Done:
        site = self._site("all_gather_into_tensor", None, group)
        parts = self._received(site, self._gather(site, input.clone(), group), group)
        output.view(-1).copy_(torch.cat([part.reshape(-1) for part in parts]))
        return _Done()

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: Any = None,
        async_op: bool = False,
    ) -> _Done:
        num = len(self._members(group))
        blocks = list(input.split(input_split_sizes) if input_split_sizes else input.chunk(num))
        site = self._site("all_to_all_single", None, group)
        received = self._deliver(site, self._sent(site, blocks), group)
        output.copy_(torch.cat(self._received(site, received, group)).reshape(output.shape))
        return _Done()

    def broadcast(self, tensor: torch.Tensor, src: int = 0, group: Any = None, group_src: int | None = None) -> None:
        site = self._site("broadcast", None, group)
        members = self._members(group)
        at = members.index(src) if group_src is None else group_src
        key = self._key(site, members)
        if members[at] == self._rank:
            self._exchange.put(key, tensor.clone())
        tensor.copy_(self._received(site, [tensor.clone(), self._exchange.get(key)], group)[1])

    def gather(self, tensor: torch.Tensor, gather_list: Parts | None = None, dst: int = 0) -> None:
        site = self._site("gather", None, None)
        parts = self._received(site, self._gather(site, tensor.clone(), None), None)
        if self._rank == dst and gather_list is not None:
            for out, part in zip(gather_list, parts, strict=True):
                out.copy_(part)

    def scatter(self, tensor: torch.Tensor, scatter_list: Parts | None = None, src: int = 0) -> None:
        site = self._site("scatter", None, None)
        key = self._key(site, self._exchange.world)
        if self._rank == src and scatter_list is not None:
            self._exchange.put(key, self._sent(site, [part.clone() for part in scatter_list]))
        tensor.copy_(self._received(site, list(self._exchange.get(key)), None)[self._rank])

    def send(self, tensor: torch.Tensor, group: Any = None, group_dst: int = 0) -> None:
        self.batch_isend_irecv([self.P2POp(self.isend, tensor, group=group, group_peer=group_dst)])

    def recv(self, tensor: torch.Tensor, group: Any = None, group_src: int = 0) -> None:
        self.batch_isend_irecv([self.P2POp(self.irecv, tensor, group=group, group_peer=group_src)])

    def P2POp(
        self, op: Any, tensor: torch.Tensor, peer: int | None = None, group: Any = None, group_peer: int | None = None
    ) -> _Message:
        return _Message(op, tensor, self._members(group)[group_peer] if group_peer is not None else int(peer or 0))

    def batch_isend_irecv(self, messages: Sequence[_Message]) -> list[_Done]:
        site = self._site("batch_isend_irecv", None, None)
        for message in messages:
            if message.operation == self.isend:
                self._exchange.put(self._message_key(self._rank, message.peer), message.tensor.clone())
        for message in messages:
            if message.operation == self.irecv:
                arrived = self._exchange.get(self._message_key(message.peer, self._rank))
                message.tensor.copy_(self._received(site, [message.tensor.clone(), arrived], None)[1])
        return [_Done() for _ in messages]

    def _members(self, group: Any) -> tuple[int, ...]:
        return group if isinstance(group, tuple) else self._exchange.world

    def _site(self, name: str, op: Any, group: Any) -> Site:
        op_name = str(op).rpartition(".")[2] if op is not None else "SUM" if "reduce" in name else ""
        site = Site(len(self.sites), name, op_name, len(self._members(group)))
        self.sites.append(site)
        return site

    def _is_altered(self, site: Site) -> bool:
        return self._altered is not None and self._altered.site == site

    def _key(self, site: Site, members: tuple[int, ...]) -> Hashable:
        """Names a collective of a group: the members make them in the same order."""
        self._counts[members] = self._counts.get(members, 0) + 1
        return site.name, members, self._counts[members]

    def _message_key(self, source: int, target: int) -> Hashable:
        count = self._counts[source, target] = self._counts.get((source, target), 0) + 1
        return "message", source, target, count

    def _gather(self, site: Site, value: Any, group: Any) -> list[Any]:
        members = self._members(group)
        key = self._key(site, members)
        self._exchange.put((key, self._rank), value)
        return [self._exchange.get((key, member)) for member in members]

    def _deliver(self, site: Site, blocks: Parts, group: Any) -> Parts:
        """Block d of every member goes to member d."""
        own = self.get_rank(group)
        return [sent[own] for sent in self._gather(site, [block.clone() for block in blocks], group)]

    def _sent(self, site: Site, blocks: Parts) -> Parts:
        return self._altered.sends(blocks) if self._altered is not None and self._is_altered(site) else blocks

    def _received(self, site: Site, parts: Parts, group: Any) -> Parts:
        if self._altered is None or not self._is_altered(site):
            return parts
        return self._altered.parts(parts, self.get_rank(group))

    def _reduce_into(self, out: torch.Tensor, name: str, tensor: torch.Tensor, op: Any, group: Any) -> None:
        site = self._site(name, op, group)
        out.copy_(self._combined(site, self._gather(site, tensor.clone(), group), group))

    def _combined(self, site: Site, parts: Parts, group: Any) -> torch.Tensor:
        op = self._altered.op if self._altered is not None and self._is_altered(site) else ""
        return reduced(self._received(site, parts, group), op or site.op)


def reduced(parts: Parts, op: str) -> torch.Tensor:
    """One tensor of the parts of all ranks.

    Raises:
        ValueError: no reduction of that name is known.
    """
    # Sums in a wider type: a candidate may add in any order.
    stacked = torch.stack(parts)
    wide = stacked.double() if stacked.dtype in (torch.bfloat16, torch.float16, torch.float32) else stacked
    if op == "SUM":
        return wide.sum(dim=0).to(stacked.dtype)
    if op == "MAX":
        return stacked.amax(dim=0)
    if op == "MIN":
        return stacked.amin(dim=0)
    if op == "PRODUCT":
        return wide.prod(dim=0).to(stacked.dtype)
    raise ValueError(f"no reduction is called {op!r}")
