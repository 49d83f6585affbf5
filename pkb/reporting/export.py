"""Runs as rows for training: one for each reply, with its prompt, verdict and reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pkb.records.attempt import Turn
from pkb.records.base import Record
from pkb.records.errors import UsageError
from pkb.records.run import RunProblem
from pkb.reporting.failures import Kind, kind_of_turn
from pkb.reporting.sheet import Sheet, Tried

Format = Literal["jsonl", "parquet"]
_LEAST_REWARD, _MOST_REWARD = 0.1, 4.0
_ROWS_AT_ONCE = 256
"""Rows of one Parquet group: what is in memory at once."""


class Message(Record):
    """One message of a conversation."""

    role: str
    """`user` or `assistant`."""
    content: str
    """Its text."""


class Row(Record):
    """One reply of a model: a line of the JSON Lines file, a row of the Parquet file. All fields are always there."""

    run: str
    """Name of the run."""
    model: str
    """The model, with its provider before a slash."""
    mode: str
    """`zero-shot`, `feedback` or `agent`."""
    backend: str
    """What the code was to be written in."""
    hardware: str
    """Profile that the prompt described."""
    problem: str
    """Id of the problem."""
    problem_sha256: str
    """Hash of the problem."""
    number: int
    """Number of the problem, for display."""
    group: str
    """Group of the problem."""
    parallelism: str
    """Parallelism of the problem."""
    attempt: int
    """Number of the attempt at this problem, from 0."""
    turn: int
    """Number of the reply within the attempt, from 0."""
    num_turns: int
    """Replies of the attempt."""
    counts: bool
    """This reply is the one that the attempt is scored by."""
    prompt: str
    """What was said to the model right before this reply."""
    reply: str
    """The reply as it came."""
    messages: tuple[Message, ...]
    """All prompts and replies of the attempt up to this reply, in turn."""
    extraction: str
    """`found`, or why there is no code."""
    code: str
    """The code that was judged; empty if there is none."""
    kind: str
    """What became of it: a kind of docs/scores.md."""
    status: str | None
    """Status of the verdict; null without one."""
    cause: str | None
    """Cause of the failure; null without one."""
    detail: str
    """Explanation of the failure; empty without one."""
    log: str
    """What compilers and ranks printed; empty without a failure."""
    solved: bool | None
    """Correct without library collectives; null if it cannot be scored."""
    solution_class: str | None
    """`custom`, `hybrid` or `library`; null where that was not observed."""
    library: bool | None
    """It calls library collectives; null where that was not observed."""
    mechanisms: tuple[str, ...]
    """Means of moving data that were seen."""
    device: str | None
    """How ranks were laid on devices."""
    world_size: int | None
    """Number of ranks."""
    dtype: str | None
    """Working dtype."""
    size: str | None
    """Size that was timed last."""
    time_us: float | None
    """Its time, microseconds."""
    baseline_us: float | None
    """The baseline's time, microseconds."""
    speedup: float | None
    """Baseline time / time."""
    sol_percent: float | None
    """% of speed of light."""
    reward: float | None
    """0 unless solved; else 1 + log2(speedup) within 0.1 and 4, and 1 if not timed; null if it cannot be scored."""
    input_tokens: int
    """Tokens sent for this reply."""
    output_tokens: int
    """Tokens of this reply, hidden reasoning included."""
    cost_usd: float | None
    """Price of this reply in US dollars; null if unknown."""
    seconds: float
    """Wall time of the call."""
    error: str
    """Why the attempt ended before its time; empty if it did not."""
    verdict: str | None
    """The whole verdict as JSON; null without one."""
    created: datetime
    """When the attempt ended."""


def reward_of(turn: Turn) -> float | None:
    """Reward of a reply for training; None if it cannot be scored, which is no failure of the model.

    0 for all that is not solved, so that no cheat, fallback or near miss is worth anything; positive and bounded for
    what is, and doubled speed always adds the same.
    """
    kind = kind_of_turn(turn)
    if kind is Kind.NOT_SCORED:
        return None
    if kind not in (Kind.FAST, Kind.SLOW, Kind.UNTIMED):
        return 0.0
    if turn.speedup is None:
        return 1.0
    return min(max(1.0 + math.log2(turn.speedup), _LEAST_REWARD), _MOST_REWARD)


def rows(sheet: Sheet) -> Iterator[Row]:
    """Rows of a run by problem, attempt and turn; an attempt without a reply has none."""
    problems = {problem.id: problem for problem in sheet.run.problems}
    for tried in sheet.all:
        messages: tuple[Message, ...] = ()
        for turn in tried.attempt.turns:
            messages += (Message(role="user", content=turn.prompt), Message(role="assistant", content=turn.reply))
            yield _row(tried, turn, messages, problems[tried.attempt.problem])


def write(sheets: Sequence[Sheet], path: Path, form: Format) -> int:
    """Write all rows to a file and return how many there are; the file is there when it is complete, not before.

    Raises:
        UsageError: the file cannot be written, or pyarrow is missing for Parquet.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        everything = (row for sheet in sheets for row in rows(sheet))
        count = _write_jsonl(everything, part) if form == "jsonl" else _write_parquet(everything, part)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}). Give a writable path.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return count


def _write_jsonl(everything: Iterator[Row], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for row in everything:
            out.write(row.model_dump_json() + "\n")
            count += 1
    return count


def _write_parquet(everything: Iterator[Row], path: Path) -> int:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed: pip install 'parallelkernelbench[export]', or use"
            " --format jsonl."
        ) from error
    schema = arrow.schema([(name, _arrow_type(arrow, field.annotation)) for name, field in Row.model_fields.items()])
    count, batch = 0, []
    with parquet.ParquetWriter(path, schema, compression="zstd") as out:
        for row in everything:
            batch.append(row.model_dump())
            count += 1
            if len(batch) == _ROWS_AT_ONCE:
                out.write_table(arrow.Table.from_pylist(batch, schema=schema))
                batch = []
        out.write_table(arrow.Table.from_pylist(batch, schema=schema))
    return count


def _arrow_type(arrow: Any, annotation: Any) -> Any:
    """The Arrow type of a field; every Arrow column may hold nulls."""
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return arrow.list_(_arrow_type(arrow, arguments[0]))
    if type(None) in arguments:
        return _arrow_type(arrow, next(one for one in arguments if one is not type(None)))
    if annotation is Message:
        return arrow.struct([(name, arrow.string()) for name in Message.model_fields])
    plain = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    return plain[annotation] if annotation in plain else arrow.timestamp("us", tz="UTC")


def _row(tried: Tried, turn: Turn, messages: tuple[Message, ...], problem: RunProblem) -> Row:
    attempt, kind = tried.attempt, kind_of_turn(turn)
    return Row(
        run=attempt.run,
        model=attempt.model,
        mode=attempt.mode,
        backend=attempt.backend,
        hardware=attempt.hardware,
        problem=attempt.problem,
        problem_sha256=attempt.problem_sha256,
        number=problem.number,
        group=problem.group,
        parallelism=problem.parallelism,
        attempt=attempt.index,
        turn=turn.index,
        num_turns=len(attempt.turns),
        counts=tried.turn is not None and turn.index == tried.turn.index,
        prompt=turn.prompt,
        reply=turn.reply,
        messages=messages,
        extraction=turn.extraction,
        code=turn.code,
        kind=kind,
        solved=None if kind is Kind.NOT_SCORED else kind in (Kind.FAST, Kind.SLOW, Kind.UNTIMED),
        reward=reward_of(turn),
        **turn.usage.model_dump(),
        error=attempt.error,
        created=attempt.created,
        **_judged(turn),
    )


def _judged(turn: Turn) -> dict[str, Any]:
    """Fields of the verdict and of its last timing."""
    verdict = turn.verdict
    failure = verdict.failure if verdict is not None else None
    timing = verdict.timings[-1] if verdict is not None and verdict.timings else None
    return {
        "status": verdict.status if verdict is not None else None,
        "cause": failure.cause if failure is not None else None,
        "detail": failure.detail if failure is not None else "",
        "log": failure.log if failure is not None else "",
        "solution_class": verdict.solution_class if verdict is not None else None,
        "library": verdict.library if verdict is not None else None,
        "mechanisms": verdict.mechanisms if verdict is not None else (),
        "device": verdict.device if verdict is not None else None,
        "world_size": verdict.world_size if verdict is not None else None,
        "dtype": verdict.dtype if verdict is not None else None,
        "size": timing.size if timing is not None else None,
        "time_us": timing.candidate_us if timing is not None else None,
        "baseline_us": timing.baseline_us if timing is not None else None,
        "speedup": timing.speedup if timing is not None else None,
        "sol_percent": timing.sol_percent if timing is not None else None,
        "verdict": verdict.model_dump_json() if verdict is not None else None,
    }
