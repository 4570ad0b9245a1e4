"""Says an answer in chat chunks, or in the chunks of the older completions."""

from stayfast.core.types import Request, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, Json, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from stayfast.wire.usage import to_chat


class _ChunkWriter:
    """What both kinds of chunks share: a head, and usage where the client asked for it."""

    __slots__ = ("_created_at", "_id", "_model", "_with_usage")
    object_type = ""

    def __init__(self, request: Request, created_at: int) -> None:
        self._id = ""
        self._model = request.model
        self._created_at = created_at
        self._with_usage = request.include_usage or not request.stream

    def end(self, usage: Usage | None) -> list[Json]:
        """The usage chunk, if it was asked for and is known."""
        return [] if not self._with_usage or usage is None else [self._envelope([]) | {"usage": to_chat(usage)}]

    def _begin(self, begin: Begin) -> list[Json]:
        self._id = begin.id or self._id
        self._model = begin.model or self._model
        self._created_at = begin.created_at if begin.created_at is not None else self._created_at
        return []  # in chat, what follows decides whether content is text or null

    def _envelope(self, choices: list[Json]) -> Json:
        return {"id": self._id, "object": self.object_type, "created": self._created_at, "model": self._model,
                "choices": choices}


class ChatWriter(_ChunkWriter):
    """Chat chunks: a role, content, a finish reason, and usage where the client asked for it."""

    __slots__ = ("_has_role",)
    object_type = "chat.completion.chunk"

    def __init__(self, request: Request, created_at: int) -> None:
        super().__init__(request, created_at)
        self._has_role = False

    def events(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                return self._begin(delta)
            case TextDelta():
                return [*self._role(), self._chunk({"content": delta.text})]
            case ThinkingDelta():
                return [*self._role(), self._chunk({"reasoning_content": delta.text})] if delta.text else []
            case ToolBegin():
                call = {"index": delta.ordinal, "id": delta.id, "type": "function",
                        "function": {"name": delta.name, "arguments": ""}}
                return [*self._role(None), self._chunk({"tool_calls": [call]})]
            case ToolDelta():
                call = {"index": delta.ordinal, "function": {"arguments": delta.arguments}}
                return [self._chunk({"tool_calls": [call]})]
            case Finish():
                return [*self._role(), self._chunk({}, delta.reason)]

    def _role(self, content: str | None = "") -> list[Json]:
        if self._has_role:
            return []
        self._has_role = True
        return [self._chunk({"role": "assistant", "content": content})]

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        return self._envelope([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


class CompletionsWriter(_ChunkWriter):
    """Completions chunks: text and a finish reason; reasoning and tools have no words there and are left out."""

    __slots__ = ()
    object_type = "text_completion"

    def events(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                return self._begin(delta)
            case TextDelta():
                return [self._chunk(delta.text, None)]
            case Finish():
                return [self._chunk("", "stop" if delta.reason == "tool_calls" else delta.reason)]
        return []

    def _chunk(self, text: str, finish_reason: str | None) -> Json:
        return self._envelope([{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}])
