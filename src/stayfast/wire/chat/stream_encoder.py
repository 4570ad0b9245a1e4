"""Encodes an answer as chunks of chat or of the older completions."""

from stayfast.core.types import Request, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, Json, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from stayfast.wire.signatures import encode_extra_content, read_marked_signature
from stayfast.wire.usage import encode_chat_usage


class _ChunkEncoder:
    """The common fields of both kinds of chunks, and the usage chunk if the client asked for it."""

    __slots__ = ("_created_at", "_id", "_model", "_with_usage")
    object_type = ""

    def __init__(self, request: Request, created_at: int) -> None:
        self._id = ""
        self._model = request.model
        self._created_at = created_at
        self._with_usage = request.include_usage or not request.stream

    def encode_end(self, usage: Usage | None) -> list[Json]:
        return [] if not self._with_usage or usage is None else [self._make_chunk([]) | {"usage": encode_chat_usage(usage)}]

    def _set_head(self, begin: Begin) -> None:
        self._id = begin.id or self._id
        self._model = begin.model or self._model
        self._created_at = begin.created_at if begin.created_at is not None else self._created_at

    def _make_chunk(self, choices: list[Json]) -> Json:
        return {"id": self._id, "object": self.object_type, "created": self._created_at, "model": self._model,
                "choices": choices}


class ChatEncoder(_ChunkEncoder):
    """Encodes chat chunks: a role, content, a finish reason."""

    __slots__ = ("_has_role",)
    object_type = "chat.completion.chunk"

    def __init__(self, request: Request, created_at: int) -> None:
        super().__init__(request, created_at)
        self._has_role = False

    def encode_delta(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                self._set_head(delta)
                return []  # the next delta decides whether the first chunk's content is "" or null
            case TextDelta():
                return [*self._encode_role(), self._encode_choice({"content": delta.text})]
            case ThinkingDelta():
                return self._encode_thinking(delta)
            case ToolBegin():
                call: Json = {"index": delta.ordinal, "id": delta.id, "type": "function",
                              "function": {"name": delta.name, "arguments": ""}}
                if delta.signature:
                    call["extra_content"] = encode_extra_content(delta.signature)
                return [*self._encode_role(None), self._encode_choice({"tool_calls": [call]})]
            case ToolDelta():
                call = {"index": delta.ordinal, "function": {"arguments": delta.arguments}}
                return [self._encode_choice({"tool_calls": [call]})]
            case Finish():
                return [*self._encode_role(), self._encode_choice({}, delta.reason)]

    def _encode_thinking(self, delta: ThinkingDelta) -> list[Json]:
        signature = read_marked_signature(delta.signature)
        fields: Json = {"reasoning_content": delta.text} if delta.text else {}
        if signature is not None:
            fields["extra_content"] = encode_extra_content(signature)
        return [*self._encode_role(), self._encode_choice(fields)] if fields else []

    def _encode_role(self, content: str | None = "") -> list[Json]:
        if self._has_role:
            return []
        self._has_role = True
        return [self._encode_choice({"role": "assistant", "content": content})]

    def _encode_choice(self, delta: Json, finish_reason: str | None = None) -> Json:
        return self._make_chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


class CompletionsEncoder(_ChunkEncoder):
    """Encodes completions chunks: text and a finish reason. The protocol has no reasoning and no tools: they are dropped."""

    __slots__ = ()
    object_type = "text_completion"

    def encode_delta(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                self._set_head(delta)
            case TextDelta():
                return [self._encode_choice(delta.text, None)]
            case Finish():
                return [self._encode_choice("", "stop" if delta.reason == "tool_calls" else delta.reason)]
        return []

    def _encode_choice(self, text: str, finish_reason: str | None) -> Json:
        return self._make_chunk([{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}])
