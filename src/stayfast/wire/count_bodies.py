"""Bodies for the count endpoints of upstreams: Anthropic's, OpenAI's, vLLM's and SGLang's, Gemini's, Bedrock's.

A count endpoint takes the members of a request that make its prompt. A text without messages is counted by `/tokenize`
only: elsewhere it would become a message, with the tokens of a template.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stayfast.core.conversation import RawObject
from stayfast.core.types import Api, Request
from stayfast.wire.request_body import can_translate, encode
from stayfast.wire.token_counts import read_plain_prompt

_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ENCODER: Final = msgspec.json.Encoder()
_PLAIN: Final = ("prompt", "add_special_tokens")  # members of a completion that make its prompt
_AS_ANSWERED: Final[Mapping[Api, Api]] = {
    Api.COUNT_TOKENS: Api.MESSAGES, Api.INPUT_TOKENS: Api.RESPONSES, Api.TOKENIZE: Api.CHAT}


class CountForm(Enum):
    """A kind of count endpoint. The value: the API of the request whose prompt it counts, and its members."""

    MESSAGES = (Api.MESSAGES, ("model", "messages", "system", "tools", "tool_choice", "thinking"))
    RESPONSES = (Api.RESPONSES, ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning",
                                 "previous_response_id", "conversation", "parallel_tool_calls", "truncation"))
    TOKENIZE = (Api.CHAT, ("model", "messages", "tools", "add_special_tokens", "add_generation_prompt",
                           "continue_final_message", "chat_template", "chat_template_kwargs", "return_token_strs"))
    GEMINI = (Api.GEMINI, ())
    VERTEX = (Api.GEMINI, ("contents", "systemInstruction", "tools"))
    BEDROCK = (Api.CONVERSE, ("messages", "system", "toolConfig"))


def encode_count_body(request: Request, form: CountForm, model: str) -> bytes | None:
    """The body for a count endpoint; None: it cannot count this request. Raises Rejected for a field without an equivalent
    there.
    """
    if request.api is Api.COMPLETIONS and form is CountForm.TOKENIZE:
        members = _OBJECT.decode(request.body)
        return _ENCODER.encode({**{name: members[name] for name in _PLAIN if name in members}, "model": model}
                               ) if bytes(members.get("prompt", b""))[:1] == b'"' else None
    if request.api is Api.TOKENIZE and read_plain_prompt(request.body) is not None:
        return _with(request.body, model=model) if form is CountForm.TOKENIZE else None
    spoken, names = form.value
    api = _AS_ANSWERED.get(request.api, request.api)
    body = request.body if api is not Api.MESSAGES else _with(request.body, max_tokens=1)
    if not can_translate(api, spoken):
        return None
    members = _OBJECT.decode(encode(replace(request, api=api, body=body), spoken, model, stream=False))
    if names:
        members = {name: members[name] for name in names if name in members}
    if form is CountForm.GEMINI:
        return _ENCODER.encode({"generateContentRequest": {"model": f"models/{model.removeprefix('models/')}", **members}})
    return _ENCODER.encode({"input": {"converse": members}} if form is CountForm.BEDROCK else members)


def _with(body: bytes, **fields: Any) -> bytes:
    return _ENCODER.encode({**_OBJECT.decode(body), **fields})
