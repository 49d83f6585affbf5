"""From the way a rank failed to status, cause and a sentence."""

from __future__ import annotations

import sysconfig

import pytest

from pkb.judging.faults import failure_of
from pkb.launch.plan import RankFault
from pkb.launch.ranks import RankFailure, describe_exit
from pkb.records.verdict import Cause, Phase, RankState, Status

LIBRARY = sysconfig.get_path("purelib")
INSIDE = RankState(
    rank=0,
    state="inside call 2",
    stack=(
        f"{LIBRARY}/torch/distributed/distributed_c10d.py:2900 all_reduce",
        f"{LIBRARY}/torch/distributed/c10d_logger.py:83 wrapper",
        "/home/me/mine.py:12 step",
        "/home/me/mine.py:30 solution",
    ),
)
RETURNED = RankState(rank=1, state="returned from all 9 calls", stack=("/home/me/mine.py:40 watch",))


def fault(kind: str, text: str = "text", log: str = "") -> RankFailure:
    return RankFailure(
        "fault", 1, states=(INSIDE, RETURNED), output="[rank 1]\nprinted",
        fault=RankFault.model_validate({"kind": kind, "text": text, "log": log}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "phase", "status", "cause"),
    [
        ("exception", Phase.CHECK, Status.CRASHED, Cause.EXCEPTION),
        ("exception", Phase.BUILD, Status.BUILD_FAILED, None),
        ("exit", Phase.TIME, Status.CRASHED, Cause.EXIT),
        ("exit", Phase.BUILD, Status.BUILD_FAILED, Cause.EXIT),
        ("out_of_memory", Phase.AUDIT, Status.CRASHED, Cause.OUT_OF_MEMORY),
        ("out_of_memory", Phase.BUILD, Status.BUILD_FAILED, Cause.OUT_OF_MEMORY),
        ("syntax", Phase.BUILD, Status.BUILD_FAILED, Cause.SYNTAX),
        ("import", Phase.BUILD, Status.BUILD_FAILED, Cause.IMPORT),
        ("compile", Phase.BUILD, Status.BUILD_FAILED, Cause.COMPILE),
        ("compile", Phase.CHECK, Status.BUILD_FAILED, Cause.COMPILE),
        ("no_solution", Phase.BUILD, Status.BUILD_FAILED, Cause.NO_SOLUTION),
        ("arity", Phase.BUILD, Status.BUILD_FAILED, Cause.ARITY),
    ],
)
def test_a_fault_has_the_status_of_its_phase(kind: str, phase: Phase, status: Status, cause: Cause | None) -> None:
    found, failure = failure_of(fault(kind), phase)
    assert found is status
    assert failure.phase is phase
    assert cause is None or failure.cause is cause


def test_a_fault_tells_its_text_who_waits_and_both_logs() -> None:
    _, failure = failure_of(fault("exception", "ValueError in call 2: no", log="Traceback"), Phase.CHECK)
    assert failure.detail == (
        "rank 1: ValueError in call 2: no; meanwhile rank 0 was inside call 2 at /home/me/mine.py:12"
        " (step, in all_reduce)"
    )
    assert failure.log == "Traceback\n[rank 1]\nprinted"
    assert failure.ranks == (INSIDE, RETURNED)


def test_a_long_log_keeps_its_end() -> None:
    _, failure = failure_of(fault("exception", log="x" * 50_000), Phase.CHECK)
    assert len(failure.log) == 12_000
    assert failure.log.endswith("x\n[rank 1]\nprinted")


def dead(code: int | None, stack: tuple[str, ...] = ()) -> RankFailure:
    state = "inside call 0" if code is None else f"{describe_exit(code)}, last seen inside call 0"
    states = (RankState(rank=0, state=state, stack=stack), RETURNED)
    return RankFailure("died", 0, states=states, output="", exit_code=code)


@pytest.mark.parametrize(
    ("code", "cause", "detail"),
    [
        (0, Cause.EXIT, "exited with code 0, last seen inside call 0"),
        (3, Cause.EXIT, "exited with code 3, last seen inside call 0"),
        (-11, Cause.SIGNAL, "killed by SIGSEGV, last seen inside call 0"),
        (-9, Cause.SIGNAL, "killed by SIGKILL, last seen inside call 0; the system does that when memory runs out"),
        (-60, Cause.SIGNAL, "killed by signal 60, last seen inside call 0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("phase", [Phase.BUILD, Phase.CHECK])
def test_a_death_is_a_crash_or_a_failed_build(phase: Phase, code: int, cause: Cause, detail: str) -> None:
    status, failure = failure_of(dead(code), phase)
    assert status is (Status.BUILD_FAILED if phase is Phase.BUILD else Status.CRASHED)
    assert failure.cause is cause
    assert failure.detail.removeprefix("rank 0 ") == detail


def test_a_death_by_signal_tells_the_line() -> None:
    _, failure = failure_of(dead(-11, (f"{LIBRARY}/numpy/core.py:1 dot", "/home/me/mine.py:7 solution")), Phase.CHECK)
    assert failure.detail.endswith("last seen inside call 0 at /home/me/mine.py:7 (solution, in dot)")


@pytest.mark.parametrize("code", [None, 71])
def test_a_closed_channel_is_called_that(code: int | None) -> None:
    status, failure = failure_of(dead(code), Phase.CHECK)
    assert (status, failure.cause) == (Status.CRASHED, Cause.EXIT)
    assert failure.detail.startswith("rank 0 closed its channel to the judge")


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ((), ""),
        (("/home/me/mine.py:3 solution",), " at /home/me/mine.py:3 (solution)"),
        ((f"{LIBRARY}/a.py:1 _hidden", "/home/me/mine.py:3 <module>"), " at /home/me/mine.py:3 (<module>)"),
        ((f"{LIBRARY}/a.py:1 only",), f" at {LIBRARY}/a.py:1 only"),
    ],
)
def test_a_hang_names_the_place_of_every_rank(stack: tuple[str, ...], place: str) -> None:
    states = (RankState(rank=0, state="inside call 1", stack=stack), RETURNED)
    error = RankFailure("deadline", 0, states=states, output="[rank 0]\nhello", text="no answer within 3 s")
    status, failure = failure_of(error, Phase.CHECK)
    assert (status, failure.cause) == (Status.HUNG, Cause.DEADLOCK)
    assert failure.detail == (f"no answer within 3 s. Rank 0: inside call 1{place}. Rank 1: returned from all 9 calls.")
    assert failure.log == "[rank 0]\nhello"
    assert failure_of(error, Phase.BUILD)[0] is Status.BUILD_FAILED


@pytest.mark.parametrize("phase", list(Phase))
def test_writing_to_the_channel_is_refused(phase: Phase) -> None:
    error = RankFailure("protocol", 1, states=(INSIDE, RETURNED), output="", text="not a message")
    status, failure = failure_of(error, phase)
    assert (status, failure.cause) == (Status.REFUSED, Cause.FORBIDDEN)
    assert failure.detail == "rank 1 wrote to the judge's channel: not a message"
