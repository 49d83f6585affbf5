"""Cheats by the clock (T1 to T16 of docs/threat-model.md)."""

from __future__ import annotations

from cheat_case import Case

from pkb.records.verdict import Cause, Status

_WRONG = frozenset({Status.WRONG})
_REFUSED = frozenset({Status.REFUSED})
_CLOCKS = frozenset({Cause.CLOCKS_DISAGREE})
_FORBIDDEN = frozenset({Cause.FORBIDDEN})


def _case(
    entry: str,
    cheat: str,
    status: frozenset[Status],
    causes: frozenset[Cause] = frozenset(),
    *,
    twin: str = "honest_sum",
    timed: bool = False,
) -> Case:
    return Case(
        entry=entry,
        file=f"clock/{cheat}.py",
        twin=f"clock/{twin}.py",
        problem="allreduce",
        status=status,
        causes=causes,
        timed=timed,
    )


CASES: list[Case] = [
    _case("T2", "late_thread", _WRONG, twin="honest_thread"),
    _case("T2", "late_next_call", _WRONG),
    _case("T3", "lazy_subclass", _WRONG, frozenset({Cause.CONTAINER}), twin="honest_attribute"),
    _case("T3", "patched_methods", _WRONG, twin="honest_attribute"),
    _case("T4", "patched_clock", _REFUSED, _FORBIDDEN, twin="honest_timer"),
    _case("T4", "patches_the_judge", _REFUSED, _FORBIDDEN),
    _case("T4", "reads_the_plan", _REFUSED, _FORBIDDEN),
    _case("T4", "finds_the_judge", _REFUSED, _FORBIDDEN),
    _case("T4", "finds_the_judge_unseen", _REFUSED, _FORBIDDEN),
    _case("T5", "native_clock", _REFUSED, _CLOCKS, twin="honest_timer", timed=True),
    _case("T5", "native_clock_slightly", _REFUSED, _CLOCKS, twin="honest_timer", timed=True),
    _case("T6", "forged_answer", _REFUSED, _FORBIDDEN, timed=True),
    _case("T6", "prints_a_verdict", frozenset({Status.CRASHED}), frozenset({Cause.EXIT})),
    _case("T7", "stops_after_warm_up", _WRONG, timed=True),
    _case("T8", "remembers_all_draws", _REFUSED, _FORBIDDEN),
    _case("T10", "nothing_when_timed", _WRONG, timed=True),
    _case("T12", "set_up_once", _WRONG),
]
