"""One run in progress: asks the model, judges its code, and writes down every reply, verdict and attempt."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from inspect_ai.model import ChatMessage, ModelOutput

from pkb.generation.extract import Extracted, extract
from pkb.generation.journal import Journal, Key
from pkb.generation.referee import JudgeCode, Level
from pkb.judging.config import JudgeConfig
from pkb.problems._spec import Problem
from pkb.records.attempt import Attempt, Turn, Usage
from pkb.records.run import Run
from pkb.records.run_folder import RunFolder
from pkb.records.verdict import Verdict

CURRENT_CALL: ContextVar[Key] = ContextVar("pkb_current_call")
"""The reply that is being asked for: by it a replay knows which one to give."""
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")

Ask = Callable[[list[ChatMessage]], Awaitable[ModelOutput]]
"""Calls the model."""


@dataclass
class Session:
    """What all attempts of a run share."""

    run: Run
    config: JudgeConfig
    judge_code: JudgeCode
    folder: RunFolder | None = None

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder.path / "journal" if self.folder is not None else None)

    def open_attempts(self) -> list[tuple[str, int]]:
        """Problem and number of each attempt that has not ended, or ended by an error that was not the model's."""
        done = self.folder.attempts() if self.folder is not None else []
        ended = {(attempt.problem, attempt.index) for attempt in done if not attempt.error}
        wanted = [(problem.id, index) for index in range(self.run.attempts) for problem in self.run.problems]
        return [one for one in wanted if one not in ended]

    def record(self, attempt: Attempt) -> None:
        """Write down an attempt that has ended."""
        if self.folder is not None:
            self.folder.append(attempt)

    async def reply(self, key: Key, messages: list[ChatMessage], ask: Ask) -> ModelOutput:
        """The model's answer to messages: from the journal if it was paid for already."""
        request = _hash_of_messages(messages)
        known = self.journal.reply(key, request)
        if known is not None:
            return ModelOutput.model_validate(known)
        token = CURRENT_CALL.set(key)
        try:
            output = await ask(messages)
        finally:
            CURRENT_CALL.reset(token)
        self.journal.add_reply(key, request, output.model_dump(mode="json", exclude_none=True))
        return output

    async def judge(self, key: Key, problem: Problem, code: str, level: Level = Level.TIME) -> Verdict:
        """Judge code: from the journal if the same code was judged at this place."""
        request = hashlib.sha256(f"{level}\0{code}".encode(errors="replace")).hexdigest()
        known = self.journal.verdict(key, request)
        if known is not None:
            return known
        verdict = await self.judge_code(problem, code, level)
        self.journal.add_verdict(key, request, verdict)
        return verdict


def extract_from(output: ModelOutput) -> Extracted:
    """The code of a reply."""
    cut_off = bool(output.choices) and output.stop_reason in ("max_tokens", "model_length")
    return extract(output.completion, cut_off=cut_off)


def turn_of(index: int, prompt: str, output: ModelOutput, extracted: Extracted, verdict: Verdict | None) -> Turn:
    """The record of a turn."""
    return Turn(
        index=index,
        prompt=prompt,
        reply=output.completion,
        extraction=extracted.extraction,
        code=extracted.code,
        verdict=verdict,
        usage=usage_of(output),
    )


def usage_of(output: ModelOutput) -> Usage:
    """What a reply took."""
    used = output.usage
    if used is None:
        return Usage(seconds=output.time or 0.0)
    cached = (used.input_tokens_cache_read or 0) + (used.input_tokens_cache_write or 0)
    return Usage(
        input_tokens=used.input_tokens + cached,
        output_tokens=used.output_tokens,
        cost_usd=used.total_cost,
        seconds=output.time or 0.0,
    )


def without_secrets(text: str) -> str:
    """A text for a record: values of environment variables that hold keys are blotted out."""
    for name, value in os.environ.items():
        if name.upper().endswith(_SECRET_NAMES) and len(value) >= 4:
            text = text.replace(value, f"<{name}>")
    return text


def _hash_of_messages(messages: Sequence[ChatMessage]) -> str:
    """Hash over what a model reads; ids of messages and calls differ from run to run and are left out."""
    content: list[Any] = []
    for message in messages:
        calls = [(call.function, call.arguments) for call in getattr(message, "tool_calls", None) or ()]
        content.append((message.role, message.text, calls))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
