"""Simulated providers with OpenAI's protocol that refuse what the real ones refuse. Without I/O and time.

    mistral      unknown fields, other roles, ids of tool calls that have not nine letters; usage in the last chunk
    deepseek     the role developer, JSON mode without the word; comments before the answer, max_completion_tokens ignored
    groq         names of messages, JSON mode without the word; usage in x_groq, requests of a day in its headers
    perplexity   system messages that are not first; max_completion_tokens ignored
    moonshot     nothing; usage in the last choice
    gemini       seed; its error is in a list
    reasoning    max_tokens and parallel_tool_calls, as OpenAI's reasoning models
    openrouter   nothing; comments before the answer, and [error] in the prompt is an error inside the stream
    plain        nothing; streams without [DONE], whose last event has no blank line

The answer of each is "Hello there." of three tokens, or fewer with a limit that it reads. Source of the errors' texts: the
vendors' documentation, or errors that users reported (docs/providers.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from re import fullmatch
from typing import Any, Final, Literal

import msgspec

Json = dict[str, Any]
WORDS: Final = ("Hello", " there", ".")
N_PROMPT: Final = 12  # tokens
_MISTRAL_FIELDS: Final = frozenset((
    "model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "response_format", "tools",
    "tool_choice", "presence_penalty", "frequency_penalty", "n", "prediction", "parallel_tool_calls", "prompt_mode",
    "safe_prompt", "metadata", "reasoning_effort"))
_GROQ_LIMITS: Final = {
    "x-ratelimit-limit-requests": "1000", "x-ratelimit-remaining-requests": "999", "x-ratelimit-reset-requests": "1m26.4s",
    "x-ratelimit-limit-tokens": "8000", "x-ratelimit-remaining-tokens": "7890", "x-ratelimit-reset-tokens": "825ms"}
_MISTRAL_LIMITS: Final = {
    "x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-req-minute": "59",
    "x-ratelimit-limit-tokens-minute": "50000", "x-ratelimit-remaining-tokens-minute": "47196"}


class VendorRefusal(Exception):
    """status and body of an error."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class CompatibleVendor:
    """What one provider accepts and refuses, and how it answers. fields: that it accepts; None: others are ignored."""

    name: str
    fields: frozenset[str] | None = None
    refused: tuple[str, ...] = ()
    limit_field: str = "max_tokens"
    roles: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")
    has_names: bool = True
    tool_id: str = ""  # a pattern
    wants_json_word: bool = False
    wants_system_first: bool = False
    usage_in: Literal["chunk", "last_chunk", "choice", "x_groq"] = "chunk"
    comment: bytes = b""
    has_done: bool = True
    fails_inside: bool = False  # [error] in the prompt is an error inside the stream
    headers: Mapping[str, str] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)  # the service tier that it serves, by that of the request
    served: str = ""  # of this request

    def check(self, body: Json) -> None:
        """Raises VendorRefusal."""
        for name in body:
            if (self.fields is not None and name not in self.fields) or name in self.refused:
                raise self._refuse_field(name, body[name])
        messages = body["messages"]
        for at, message in enumerate(messages):
            if message["role"] not in self.roles:
                raise self._error(f"Failed to deserialize the JSON body into the target type: messages[{at}].role: unknown "
                                  f"variant `{message['role']}`, expected one of {', '.join(self.roles)}")
            if not self.has_names and "name" in message:
                raise self._error(f"'messages.{at}' : for 'role:{message['role']}' the following must be satisfied"
                                  f"[('messages.{at}' : property 'name' is unsupported)]")
            self._check_ids(message)
        if self.wants_system_first and any(message["role"] == "system" for message in messages[1:]):
            raise self._error("After the (optional) system message(s), user or tool message(s) should alternate with "
                              "assistant message(s).")
        if (self.wants_json_word and body.get("response_format", {}).get("type") == "json_object"
                and b"json" not in msgspec.json.encode(messages).lower()):
            raise self._error("'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                              "'json_object'.")

    def _check_ids(self, message: Json) -> None:
        ids = [message.get("tool_call_id"), *(call["id"] for call in message.get("tool_calls") or ())]
        for tool_id in ids:
            if self.tool_id and tool_id is not None and not fullmatch(self.tool_id, tool_id):
                text = f"Tool call id was {tool_id} but must be a-z, A-Z, 0-9, with a length of 9."
                raise VendorRefusal(400, {"object": "error", "message": text, "type": "invalid_function_call", "param": None,
                                          "code": "3280"})

    def _refuse_field(self, name: str, value: object) -> VendorRefusal:
        if self.name == "mistral":
            detail = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted",
                      "input": value}
            return VendorRefusal(422, {"object": "error", "message": {"detail": [detail]}, "type": "invalid_request_error",
                                       "param": None, "code": None})
        if self.name == "gemini":
            text = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            return VendorRefusal(400, [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}])
        text = f"Unsupported parameter: '{name}' is not supported with this model."
        return self._error(text, "unsupported_parameter", name)

    def _error(self, text: str, code: str | None = None, param: str | None = None) -> VendorRefusal:
        error = {"message": text, "type": "invalid_request_error", "param": param, "code": code}
        return VendorRefusal(400, {"error": error})

    def answer_parts(self, body: Json) -> Iterator[bytes]:
        """The parts of an answer's body. Raises VendorRefusal."""
        self.check(body)
        if self.tiers:
            wanted = body.get("service_tier", "auto")
            if wanted not in self.tiers:
                raise self._error(f"Invalid value: '{wanted}'. Supported values are: {', '.join(self.tiers)}.",
                                  "invalid_value", "service_tier")
            yield from replace(self, tiers={}, served=self.tiers[wanted]).answer_parts(body)
            return
        limit = body.get(self.limit_field)
        words = WORDS[:limit] if limit is not None else WORDS
        if not body.get("stream"):
            yield b"\n" if self.comment else b""  # DeepSeek sends blank lines while a request waits
            yield msgspec.json.encode(self._whole(words))
            return
        for _ in range(2 if self.comment else 0):
            yield self.comment + b"\n\n"
        if self.fails_inside and b"[error]" in msgspec.json.encode(body["messages"]):
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
            yield _event({**self._head(), "error": {"code": 502, "message": "Provider disconnected"}, "choices": [choice]})
            return
        yield from self._events(words, wants_usage=bool((body.get("stream_options") or {}).get("include_usage")))

    def _events(self, words: tuple[str, ...], *, wants_usage: bool) -> Iterator[bytes]:
        choice: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield _event({**self._head(), "choices": [choice]})
        for word in words:
            yield _event({**self._head(), "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
        usage = _usage(words)
        last: Json = {**self._head(), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if self.usage_in == "choice":
            last["choices"][0]["usage"] = usage
        elif self.usage_in == "x_groq":
            last["x_groq"] = {"id": "req_1", "usage": usage}
        elif self.usage_in == "last_chunk":
            last["usage"] = usage
        yield _event(last) if self.has_done else _event(last).removesuffix(b"\n\n")
        if self.usage_in == "chunk" and wants_usage:
            yield _event({**self._head(), "choices": [], "usage": usage})
        if self.has_done:
            yield b"data: [DONE]\n\n"

    def _whole(self, words: tuple[str, ...]) -> Json:
        message = {"role": "assistant", "content": "".join(words)}
        return {**self._head(), "object": "chat.completion", "usage": _usage(words),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    def _head(self) -> Json:
        head: Json = {"id": f"chat-{self.name}", "object": "chat.completion.chunk", "created": 1, "model": self.name}
        return head | {"service_tier": self.served} if self.served else head


def _usage(words: tuple[str, ...]) -> Json:
    return {"prompt_tokens": N_PROMPT, "completion_tokens": len(words), "total_tokens": N_PROMPT + len(words)}


def _event(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


_OLD_ROLES: Final = ("system", "user", "assistant", "tool")
COMPATIBLE_VENDORS: Final = {vendor.name: vendor for vendor in (
    CompatibleVendor("mistral", fields=_MISTRAL_FIELDS, roles=_OLD_ROLES, tool_id="[a-zA-Z0-9]{9}", usage_in="last_chunk",
                     headers=_MISTRAL_LIMITS),
    CompatibleVendor("deepseek", roles=_OLD_ROLES, wants_json_word=True, comment=b": keep-alive"),
    CompatibleVendor("groq", has_names=False, wants_json_word=True, usage_in="x_groq", headers=_GROQ_LIMITS,
                     limit_field="max_completion_tokens"),
    CompatibleVendor("perplexity", wants_system_first=True),
    CompatibleVendor("moonshot", usage_in="choice"),
    CompatibleVendor("gemini", refused=("seed",)),
    CompatibleVendor("reasoning", refused=("max_tokens", "parallel_tool_calls"), limit_field="max_completion_tokens"),
    CompatibleVendor("openrouter", comment=b": OPENROUTER PROCESSING", fails_inside=True),
    CompatibleVendor("plain", has_done=False),
    CompatibleVendor("tiered", tiers={"auto": "default", "default": "default", "flex": "flex", "priority": "priority",
                                      "ultrafast": "priority"}),  # full: it serves and bills another tier
)}
