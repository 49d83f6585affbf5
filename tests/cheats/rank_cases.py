"""Cheats that need several ranks (M1 to M24 of docs/threat-model.md), beside the races."""

from __future__ import annotations

from cheat_case import Case

from pkb.records.verdict import Cause, Status

_LIBRARY: frozenset[Status] = frozenset()


def _case(entry: str, cheat: str, status: frozenset[Status], *causes: Cause, world_size: int = 2) -> Case:
    return Case(
        entry=entry,
        file=f"ranks/{cheat}.py",
        twin="ranks/own_sum_honest.py",
        problem="allreduce",
        status=status,
        causes=frozenset(causes),
        world_size=world_size,
    )


CASES: list[Case] = [
    _case("M8", "lazy_rank", frozenset({Status.WRONG})),
    _case("M11", "collective_by_backend", _LIBRARY),
    _case("M11", "collective_by_getattr", _LIBRARY),
    _case("M11", "collective_by_group", _LIBRARY),
    _case("M11", "collective_functional", _LIBRARY),
    _case("M11", "collective_in_a_crowd", _LIBRARY),
    _case("M11", "collective_on_new_group", _LIBRARY),
    _case("M15", "skips_a_barrier", frozenset({Status.HUNG, Status.CRASHED, Status.WRONG})),
    _case("M16", "unbounded_spin", frozenset({Status.HUNG}), Cause.DEADLOCK),
    _case("M18", "dead_rank", frozenset({Status.CRASHED}), Cause.EXIT),
    _case("M21", "two_ranks_only", frozenset({Status.WRONG}), world_size=4),
    _case("V23", "own_inputs_only", frozenset({Status.WRONG})),
]
