"""Races: ordering that holds by luck (M1 to M6, M14 of docs/threat-model.md)."""

from __future__ import annotations

from cheat_case import Case

from pkb.records.verdict import Status

_WRONG = frozenset({Status.WRONG})


def _case(entry: str, cheat: str, twin: str, world_size: int) -> Case:
    return Case(
        entry=entry,
        file=f"ranks/race_{cheat}.py",
        twin=f"ranks/race_{twin}_honest.py",
        problem="allreduce",
        status=_WRONG,
        world_size=world_size,
    )


CASES: list[Case] = [
    _case(entry, cheat, twin, world_size)
    for world_size in (2, 4)
    for entry, cheat, twin in (
        ("M1", "no_enter", "barriers"),
        ("M2", "no_leave", "barriers"),
        ("M3", "stale_buffer", "barriers"),
        ("M4", "flag_not_reset", "flags"),
        ("M4", "epoch", "flags"),
        ("M6", "relaxed_flag", "flags"),
        ("M14", "in_place", "in_place"),
    )
]
