"""The output limit of a request, and the JSON schema of its answer, in all dialects.

Problem: chat has two fields for one limit, of which older servers know one and reasoning models the other; reasoning counts
in both, and a messages request may reserve a part of its limit for it. Rule: a limit is written into the fields that the
client used; without one, into `max_completion_tokens`, which providers' quirks rename. All other members keep their bytes.
Source: the protocols' documentation; `thinking.budget_tokens` must be below `max_tokens`. When wrong: an upstream with a
field of its own for the limit keeps the larger one there.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected
from stayfast.core.types import Api, OutputCap, Request

CAPPED_APIS: Final = (Api.CHAT, Api.RESPONSES, Api.MESSAGES, Api.COMPLETIONS)
_FIELDS: Final[dict[Api, tuple[str, ...]]] = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"), Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",), Api.MESSAGES: ("max_tokens",)}
_FORMATS: Final[dict[Api, tuple[tuple[str, ...], ...]]] = {
    Api.CHAT: (("response_format", "json_schema"),), Api.RESPONSES: (("text", "format"),),
    Api.MESSAGES: (("output_config", "format"), ("output_format",))}
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def set_output_limit(request: Request, cap: OutputCap) -> Request:
    """The request with this limit in its own dialect; itself if its API has none."""
    names = _FIELDS.get(request.api)
    if names is None:
        return request
    fields: dict[str, Any] = _OBJECT.decode(request.body)
    given = [name for name in names if name in fields and bytes(fields[name]) != b"null"]
    for name in given or names[:1]:
        fields[name] = cap.n_tokens
    return msgspec.structs.replace(request, body=_ENCODER.encode(fields), max_output_tokens=cap.n_tokens, cap=cap)


def _limit_field(request: Request) -> str:
    """The name of the field that holds the limit, for messages to its client."""
    names = _FIELDS.get(request.api, ("max_tokens",))
    return next((name for name in names if f'"{name}"'.encode() in request.body), names[0])


def read_reasoning_budget(request: Request) -> int:
    """Tokens that a messages request reserves for its reasoning; 0: none."""
    if request.api is not Api.MESSAGES or b'"budget_tokens"' not in request.body:
        return 0
    thinking = _member(request.body, ("thinking",))
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) and thinking.get("type") != "disabled" else None
    return budget if isinstance(budget, int) else 0


def find_output_schema(request: Request) -> dict[str, Any] | None:
    """The JSON schema that the answer must match; None: there is none."""
    if b'"json_schema"' not in request.body:
        return None
    for path in _FORMATS.get(request.api, ()):
        form = _member(request.body, path)
        if isinstance(form, dict) and isinstance(schema := form.get("schema"), dict):
            return schema
    return None


def short_limit(request: Request, n_tokens: int, n_least: int) -> Rejected:
    """The error for a schema whose shortest valid answer is longer than the limit."""
    field = _limit_field(request)
    return Rejected(f"{field}: {n_tokens} tokens are too few for this JSON schema. Its shortest valid answer has at least "
                    f"{n_least} tokens, so no answer could be complete. Raise {field}, or send a smaller schema.",
                    code="schema_exceeds_limit", param=field)


def _member(body: bytes, path: tuple[str, ...]) -> object:
    """A member of a body, decoded; None: absent."""
    raw: bytes | Raw = body
    try:
        for name in path:
            raw = _OBJECT.decode(raw).get(name, Raw(b"null"))
        return _ANY.decode(raw)
    except _ERRORS:
        return None
