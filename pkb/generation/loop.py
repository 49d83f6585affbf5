"""The turns of one attempt: a reply, its verdict, and what the next prompt says about it."""

from __future__ import annotations

from inspect_ai.model import ChatMessage, ChatMessageUser

from pkb.generation.journal import Key
from pkb.generation.prompt import render_next_turn
from pkb.generation.session import Ask, Session, extract_from, turn_of
from pkb.problems._spec import Problem
from pkb.records.attempt import Extraction, Turn


async def take_turns(
    session: Session, problem: Problem, index: int, prompt: str, ask: Ask, turns: list[Turn]
) -> list[ChatMessage]:
    """Run the turns of an attempt.

    Args:
        session: the run.
        problem: what is asked.
        index: number of the attempt.
        prompt: the task.
        ask: calls the model.
        turns: gets every turn as soon as it is judged, so that those before an error are kept.

    Returns:
        The conversation.
    """
    messages: list[ChatMessage] = [ChatMessageUser(content=prompt)]
    for step in range(session.run.turns):
        key = Key(problem.id, index, step)
        output = await session.reply(key, messages, ask)
        extracted = extract_from(output)
        verdict = None
        if extracted.extraction is Extraction.FOUND:
            verdict = await session.judge(key, problem, extracted.code)
        turns.append(turn_of(step, messages[-1].text, output, extracted, verdict))
        messages.append(output.message)
        if step + 1 < session.run.turns:
            messages.append(ChatMessageUser(content=render_next_turn(verdict, extracted)))
    return messages
