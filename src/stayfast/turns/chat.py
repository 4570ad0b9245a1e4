"""A model for agents behind OpenAI's client, for a gateway or any server with OpenAI's chat API.

    client = AsyncOpenAI(base_url="http://127.0.0.1:8090/v1")
    agent = Agent(ChatModel(client, "large"), tools, plan=ChatModel(client, "small", temperature=0))

Each request carries the time left in the turn, as its timeout and as the deadline header of the gateway. The library is not
imported here.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from stayfast.turns.http import sdk_options
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.tools import ToolCallRequest


class ChatModel:
    """`options`: more arguments of `chat.completions.create`, such as temperature or tool_choice."""

    def __init__(self, client: Any, model: str, **options: Any) -> None:
        self._client = client
        self._model = model
        self._options = options

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                       max_tokens: int) -> ModelReply:
        options: dict[str, Any] = {"max_completion_tokens": max_tokens, "stream_options": {"include_usage": True},
                                   **self._options}
        deadline = sdk_options(timeout=options.pop("timeout", None), extra_headers=options.pop("extra_headers", None))
        choice = options.pop("tool_choice", "auto")
        if tools:
            options |= {"tools": list(tools), "tool_choice": choice if may_call else "none"}
        collected = _CollectedAnswer(on_piece)
        async with await self._client.chat.completions.create(model=self._model, messages=list(messages), stream=True,
                                                              **options | deadline) as stream:
            async for chunk in stream:
                collected.add_chunk(chunk)
        return collected.finish()

    def __repr__(self) -> str:
        return f"<ChatModel {self._model}>"


class _PartialToolCall:
    """A tool call whose arguments are still arriving."""

    def __init__(self, index: int) -> None:
        self.id = f"call_{index}"
        self.name = ""
        self.arguments = ""
        self.is_reported = False

    @property
    def is_complete(self) -> bool:
        """Whether its arguments are a complete JSON object; nothing can follow one."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode(self.arguments, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError):
            return False
        return True

    def build(self) -> ToolCallRequest:
        return ToolCallRequest(self.id, self.name, self.arguments.strip())


class _CollectedAnswer:
    """The chunks of one answer so far."""

    def __init__(self, on_piece: OnPiece) -> None:
        self._on_piece = on_piece
        self._texts: list[str] = []
        self._calls: dict[int, _PartialToolCall] = {}
        self._n_tokens = 0

    def add_chunk(self, chunk: Any) -> None:
        if chunk.usage is not None:
            self._n_tokens = chunk.usage.completion_tokens
        if not chunk.choices:
            return
        delta = chunk.choices[0].delta
        if delta.content:
            self._texts.append(delta.content)
            self._on_piece(delta.content)
        for piece in delta.tool_calls or ():
            call = self._calls.setdefault(piece.index, _PartialToolCall(piece.index))
            call.id = piece.id or call.id
            if piece.function is not None:
                call.name += piece.function.name or ""
                call.arguments += piece.function.arguments or ""
            if not call.is_reported and call.is_complete:
                call.is_reported = True
                self._on_piece(call.build())

    def finish(self) -> ModelReply:
        calls = tuple(self._calls[index].build() for index in sorted(self._calls))
        return ModelReply("".join(self._texts), calls, self._n_tokens)
