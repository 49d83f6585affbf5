"""Recorded replies: a file of them, and a model that answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from pkb.generation.journal import Key
from pkb.generation.recorded import RecordedReply, read_replies
from pkb.generation.session import CURRENT_CALL
from pkb.records.errors import UsageError


class ReplayAPI(ModelAPI):
    """Answers with the reply that was recorded for the same problem, attempt and turn."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - the base class has it so
        replies: str = "",
        **model_args: Any,
    ) -> None:
        """Read the replies of a file.

        Raises:
            UsageError: there is no such file, or a line is no reply.
        """
        super().__init__(model_name, base_url, api_key, [], config)
        self._file = Path(replies or model_name)
        self._replies: dict[Key, RecordedReply] = read_replies(self._file)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """The recorded reply.

        Raises:
            UsageError: none was recorded for this call.
        """
        key = CURRENT_CALL.get()
        if key not in self._replies:
            raise UsageError(f"{self._file}: no reply {key.step} of attempt {key.attempt} at {key.problem}.")
        recorded = self._replies[key]
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=recorded.reply, source="generate"), stop_reason=recorded.stop_reason
        )
        usage = ModelUsage(
            input_tokens=recorded.input_tokens,
            output_tokens=recorded.output_tokens,
            total_tokens=recorded.input_tokens + recorded.output_tokens,
        )
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage)


@modelapi(name="replay")
def replay() -> type[ModelAPI]:
    """`replay/FILE`: recorded replies."""
    return ReplayAPI
