"""A validated `Request` in, the bytes for an upstream out.

In the client's own dialect its bytes go on, whole: only the members that must change are spliced, at the top level, and
every other value keeps its bytes. Into another dialect they go through the normal form (core.conversation).
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import Conversation, RawObject
from stayfast.core.errors import Rejected
from stayfast.core.types import Api, Request
from stayfast.wire.chat import request as chat
from stayfast.wire.dialect import unsayable
from stayfast.wire.json_input import typed
from stayfast.wire.messages import request as messages
from stayfast.wire.responses import request as responses

_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ENCODER: Final = msgspec.json.Encoder()
_TRUE: Final = Raw(b"true")
_BODIES: Final[dict[Api, Callable[..., dict[str, Any]]]] = {
    Api.CHAT: chat.body, Api.RESPONSES: responses.body, Api.MESSAGES: messages.body}
_SPOKEN: Final = frozenset({
    *((client, upstream) for client in _BODIES for upstream in _BODIES),
    *((api, api) for api in Api),
    (Api.COMPLETIONS, Api.CHAT),
})


def can_translate(client: Api, upstream: Api) -> bool:
    """Whether requests and answers can pass between these two dialects (each with itself included)."""
    return (client, upstream) in _SPOKEN


def encode(request: Request, to: Api, model: str, *, stream: bool, want_usage: bool = False) -> bytes:
    """The body to send. Raises Rejected for what cannot be said in `to`; what is dropped stands in each `ask` module.
    `want_usage`: chat and completions streams are asked for usage even where the client did not; then its transcoder must
    hide it. Translated chat streams always ask.
    """
    if request.api is to:
        add_usage = want_usage and stream and not request.include_usage and to in (Api.CHAT, Api.COMPLETIONS)
        return _splice(request, model, stream, add_usage)
    if not can_translate(request.api, to):
        raise Rejected(f"{request.api.value} requests cannot be answered by this model, which speaks {to.value}",
                       code="unsupported_api", param="model")
    parsed = conversation(request)
    if parsed.native:
        raise unsayable(parsed.native[0], to.value)
    return _ENCODER.encode(_BODIES[to](parsed, model, stream=stream))


def conversation(request: Request) -> Conversation:
    """What is asked, in the normal form. Raises Rejected, and for requests that ask for no answer as well."""
    match request.api:
        case Api.CHAT:
            return chat.conversation(typed(chat.CHAT, request.body))
        case Api.COMPLETIONS:
            return chat.completions_conversation(typed(chat.COMPLETIONS, request.body))
        case Api.RESPONSES:
            return responses.conversation(typed(responses.RESPONSES, request.body))
        case Api.MESSAGES:
            return messages.conversation(typed(messages.MESSAGES, request.body))
    raise Rejected(f"{request.api.value} requests hold no conversation", code="unsupported_api")


def _splice(request: Request, model: str, stream: bool, add_usage: bool) -> bytes:
    if model == request.model and stream == request.stream and not add_usage:
        return request.body
    fields: dict[str, Any] = typed(_OBJECT, request.body)
    if model != request.model:
        fields["model"] = model
    if stream != request.stream:
        fields["stream"] = stream
        if not stream:
            fields.pop("stream_options", None)  # refused without a stream
    if add_usage:
        before = fields.get("stream_options")
        options: RawObject = {} if before is None or bytes(before) == b"null" else _OBJECT.decode(before)
        fields["stream_options"] = {**options, "include_usage": _TRUE}
    return _ENCODER.encode(fields)
