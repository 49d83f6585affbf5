"""What became of an attempt, as one kind: solved, or failed in a way that belongs to a family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from pkb.records.attempt import Attempt, Turn
from pkb.records.verdict import Cause, Failure, Status


class Family(StrEnum):
    """Groups of kinds."""

    SOLVED = "solved"
    LANGUAGE = "language-level"
    """The code did not get to run: what a compiler or an interpreter says."""
    REASONING = "reasoning"
    """The code ran; what it does is not what was asked, or not fast enough."""
    REFUSED = "refused"
    """Not honest, or not credible."""
    NOT_SCORED = "not scored"
    """The judge or the provider failed, or only the build was asked for: left out of every share."""


class Kind(StrEnum):
    """What became of an attempt; each attempt has exactly one."""

    FAST = "faster than the baseline"
    UNTIMED = "solved, not timed"
    SLOW = "slow"
    LIBRARY_FALLBACK = "library fallback"
    NO_CODE = "no code"
    SYNTAX = "syntax"
    INTERFACE = "interface"
    COMPILE = "compile"
    LINK = "link"
    LAUNCH = "launch"
    RANK_COORDINATION = "rank coordination"
    RACE = "race"
    HANG = "hang"
    WRONG_NUMBERS = "wrong numbers"
    REFUSED = "refused"
    NOT_SCORED = "not scored"


FAMILY_OF: dict[Kind, Family] = {
    Kind.FAST: Family.SOLVED,
    Kind.UNTIMED: Family.SOLVED,
    Kind.NO_CODE: Family.LANGUAGE,
    Kind.SYNTAX: Family.LANGUAGE,
    Kind.INTERFACE: Family.LANGUAGE,
    Kind.COMPILE: Family.LANGUAGE,
    Kind.LINK: Family.LANGUAGE,
    Kind.LAUNCH: Family.LANGUAGE,
    Kind.RANK_COORDINATION: Family.REASONING,
    Kind.RACE: Family.REASONING,
    Kind.HANG: Family.REASONING,
    Kind.WRONG_NUMBERS: Family.REASONING,
    Kind.SLOW: Family.REASONING,
    Kind.LIBRARY_FALLBACK: Family.REASONING,
    Kind.REFUSED: Family.REFUSED,
    Kind.NOT_SCORED: Family.NOT_SCORED,
}

MEANINGS: dict[Kind, str] = {
    Kind.FAST: "solved, and faster than the baseline",
    Kind.UNTIMED: "solved where nothing is timed",
    Kind.SLOW: "solved, and no faster than the baseline",
    Kind.LIBRARY_FALLBACK: "correct, but by library collectives, or not seen to communicate by itself",
    Kind.NO_CODE: "the reply holds no code, or ends inside it",
    Kind.SYNTAX: "the file is not valid Python",
    Kind.INTERFACE: "no function `solution` with the reference's arguments",
    Kind.COMPILE: "a compiler refused the source",
    Kind.LINK: "a symbol, a shared library or a module that it needs was not found",
    Kind.LAUNCH: "it was built, but raised, died, or ran out of memory instead of returning",
    Kind.RANK_COORDINATION: "a rank's data is missing, doubled, misplaced, or differs where ranks must agree",
    Kind.RACE: "results depend on who is late: unordered, stale or overwritten data",
    Kind.HANG: "ranks wait for each other and do not return",
    Kind.WRONG_NUMBERS: "it returns something else than was asked: value, precision, shape, dtype, changed inputs",
    Kind.REFUSED: "forbidden means, or times that the hardware or the judge's clock contradict",
    Kind.NOT_SCORED: "the judge or the provider failed, or only the build was asked for",
}

_OF_CAUSE: dict[Cause, Kind] = {
    Cause.SYNTAX: Kind.SYNTAX,
    Cause.NO_SOLUTION: Kind.INTERFACE,
    Cause.ARITY: Kind.INTERFACE,
    Cause.DEADLOCK: Kind.HANG,
    Cause.MISSING_RANK: Kind.RANK_COORDINATION,
    Cause.DOUBLED_RANK: Kind.RANK_COORDINATION,
    Cause.OWN_DATA_ONLY: Kind.RANK_COORDINATION,
    Cause.PERMUTED_RANKS: Kind.RANK_COORDINATION,
    Cause.SHARDING_AXIS: Kind.RANK_COORDINATION,
    Cause.RANKS_DIFFER: Kind.RANK_COORDINATION,
    Cause.RACE: Kind.RACE,
    Cause.STALE: Kind.RACE,
    Cause.OVERWRITTEN: Kind.RACE,
}
_OF_STATUS: dict[Status, Kind] = {
    Status.WRONG: Kind.WRONG_NUMBERS,
    Status.MUTATED_INPUT: Kind.WRONG_NUMBERS,
    Status.BUILD_FAILED: Kind.LAUNCH,
    Status.CRASHED: Kind.LAUNCH,
    Status.HUNG: Kind.HANG,
    Status.REFUSED: Kind.REFUSED,
    Status.INVALID: Kind.NOT_SCORED,
}
# What linkers, the dynamic loader and Python say about a name that nothing defines.
_UNRESOLVED = re.compile(
    r"undefined (symbol|reference)|unresolved extern|cannot open shared object|cannot find -l|ld returned"
    r"|multiple definition of|ModuleNotFoundError|cannot import name",
    re.IGNORECASE,
)
_TORCH_BUILDER = "Error building extension"
"""How torch's `load_inline` begins when a compiler or linker failed, wherever a solution calls it."""


def kind_of(attempt: Attempt) -> Kind:
    """What became of an attempt."""
    return Kind.NOT_SCORED if attempt.best is None else kind_of_turn(attempt.best)


def kind_of_turn(turn: Turn) -> Kind:
    """What became of one reply."""
    if turn.verdict is None:
        # Code without a verdict: judging was cut off.
        return Kind.NOT_SCORED if turn.code else Kind.NO_CODE
    if not turn.verdict.is_scored:
        return Kind.NOT_SCORED
    if turn.verdict.failure is not None:
        return _of_failure(turn.verdict.status, turn.verdict.failure)
    if not turn.verdict.solved:
        return Kind.LIBRARY_FALLBACK
    if turn.speedup is None:
        return Kind.UNTIMED
    return Kind.FAST if turn.speedup > 1.0 else Kind.SLOW


def shares(attempts: Iterable[Attempt]) -> dict[Kind, float]:
    """Share of each kind among the scored attempts, in the order of `Kind`; all 0 if there are none."""
    counts = Counter(kind_of(attempt) for attempt in attempts)
    del counts[Kind.NOT_SCORED]
    total = counts.total()
    return {kind: counts[kind] / total if total else 0.0 for kind in Kind if kind is not Kind.NOT_SCORED}


def _of_failure(status: Status, failure: Failure) -> Kind:
    said = f"{failure.detail}\n{failure.log}"
    builds = failure.cause is Cause.COMPILE or _TORCH_BUILDER in said
    if (builds or failure.cause is Cause.IMPORT) and _UNRESOLVED.search(said):
        return Kind.LINK
    if builds:
        return Kind.COMPILE
    return _OF_CAUSE.get(failure.cause, _OF_STATUS[status])
