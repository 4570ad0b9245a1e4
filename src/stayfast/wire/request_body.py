"""Request bodies in both directions: untrusted JSON in, a validated `Request` out; a `Request` in, an upstream's JSON out.

In: bytes are bounded before they are parsed, and an error names its field. Depth is bounded without parsing: with its
strings removed, a document is only brackets, and its depth is their highest running sum. Most bodies have fewer brackets
than the limit has levels and skip that step. The sum takes 20 ns a bracket, so their number is bounded as well. Every
field that a translation reads is typed, so later code meets no wrong type; other fields pass unchecked. Error messages
never quote values of the client: they may be prompts.

Out: in the client's own dialect the body is forwarded. Only the top-level members that must change are replaced, and every
other value keeps its bytes. In another dialect the body is translated through the normal form (core.conversation).
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import Conversation, RawObject
from stayfast.core.errors import Rejected
from stayfast.core.events import RequestParams
from stayfast.core.types import Api, CacheControl, Request
from stayfast.wire.chat import request as chat
from stayfast.wire.client_headers import parse_start_within_s
from stayfast.wire.converse import request as converse
from stayfast.wire.dialect import MAX_NUMBER, has_value, missing_field, require, untranslatable_field
from stayfast.wire.gemini import request as gemini
from stayfast.wire.gemini.embeddings import encode_embeddings
from stayfast.wire.messages import request as messages
from stayfast.wire.rerank import RerankRequest
from stayfast.wire.responses import request as responses
from stayfast.wire.token_counts import TokenizeRequest

T = TypeVar("T")

TAG: Final = re.compile(r"[!-+\--~]{1,64}")
TAG_FORM: Final = "1 to 64 visible ASCII characters but the comma"
MAX_TAGS: Final = 16
MAX_DEPTH: Final = 512  # parsers and encoders use a stack frame per level, and Python allows 1000
MAX_BRACKETS: Final = 2_000_000  # brackets outside of strings, and quotes of strings that contain brackets

_ROLES: Final = "one of system, developer, user, assistant, tool, function"
_ANTHROPIC_ROLES: Final = "one of user, assistant, system"
_CHAT_PARTS: Final = {"text": ("text",), "image_url": ("image_url",)}
_BLOCKS: Final = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("tool_use_id",)}
_NOT_FORWARDED: Final = ("stayfast", "cache", "start_within")  # members for the gateway
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ENCODER: Final = msgspec.json.Encoder()
_PARAMS: Final = msgspec.json.Decoder(RequestParams)
_TRUE: Final = Raw(b"true")
_SMALL_BYTES: Final = 65_536
_STEPS: Final = bytes.maketrans(b"{}[]", b"\x01\xff\x01\xff")
_ALL_BUT_MARKS: Final = bytes(sorted(set(range(256)) - set(b'{}[]"')))
_HALF_PAIR: Final = re.compile(rb"\\u(?:d[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..\\u)d[c-f])", re.IGNORECASE)
_ERROR_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_TOO_LARGE: Final = ("Number out of range", "Integer value out of range")  # msgspec's messages for a float and an integer
_NUMBER_BOUNDS: Final = f"number out of range, expected one from {-MAX_NUMBER} to {MAX_NUMBER}"
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Bounds of a body. `max_depth`: levels of nesting; real schemas and tool inputs stay below 30."""

    max_depth: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= MAX_DEPTH:
            raise ValueError(f"max_depth must be from 1 to {MAX_DEPTH}, not {self.max_depth}")


_DEFAULT: Final = DecodeLimits()


def decode(api: Api, body: bytes, limits: DecodeLimits = _DEFAULT) -> Request:
    """Validate `body`. Raises Rejected (400) with the path of the offending field as `param`."""
    check_json_bounds(body, limits.max_depth)
    decoder, roles, to_request = _FORMS[api]
    parsed = decode_typed(decoder, body, expected=roles)
    if parsed.stayfast or parsed.cache or parsed.start_within:
        return _decode_extended(api, body)
    return to_request(parsed, body)


def check_json_bounds(body: bytes, max_depth: int) -> None:
    """Reject what is not UTF-8 or nested deeper than `max_depth`, before any parser sees it. Raises Rejected."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Rejected(f"the body is not valid UTF-8 (byte {error.start})", code="invalid_json") from None
    if len(body) <= _SMALL_BYTES:  # `replace` jumps from match to match, `count` checks each byte
        n_brackets = len(body) - len(body.replace(b"[", b"").replace(b"{", b""))
    else:  # a large body may consist of brackets: `replace` would be slow
        n_brackets = body.count(b"[") + body.count(b"{")
    if n_brackets > max_depth and _is_deeper(body, max_depth):
        raise nesting_error(max_depth)


def nesting_error(max_depth: int) -> Rejected:
    return Rejected(f"the body is nested deeper than {max_depth} levels", code="too_deep")


def _is_deeper(body: bytes, max_depth: int) -> bool:
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _ALL_BUT_MARKS).replace(b'""', b"")  # removing a pair of quotes keeps the rest's meaning
    if marks.count(b'"') <= MAX_BRACKETS:
        brackets = b"".join(marks.split(b'"')[::2])
        if len(brackets) <= MAX_BRACKETS:
            return max(accumulate(array("b", brackets.translate(_STEPS))), default=0) > max_depth
    raise Rejected(f"the body contains more than {MAX_BRACKETS} brackets", code="too_complex")


def decode_typed(decoder: "msgspec.json.Decoder[T]", body: bytes, at: str = "", expected: str = "") -> T:
    """Parse `body`, which is at path `at` of the request. Raises Rejected with the offending field as `param`.
    `expected`: the valid values of an enumerated field, for the error message.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _type_error(str(error), at, expected) from None
    except msgspec.DecodeError as error:
        why = "half of a surrogate pair" if _HALF_PAIR.search(body.replace(b"\\\\", b"")) else error
        raise Rejected(f"the body is not valid JSON: {why}", code="invalid_json") from None
    except RecursionError:
        raise Rejected("the body is nested too deeply", code="too_deep") from None


def _type_error(message: str, at: str, expected: str) -> Rejected:
    match = _ERROR_PATH.match(message)
    assert match is not None
    what = match["what"]
    path = at + (match["path"] or "$")[1:]
    lacks = _MISSING.match(what)
    if lacks is not None:
        return missing_field(f"{path}.{lacks['field']}".lstrip("."))
    path = path.lstrip(".")
    if what.startswith("Invalid value"):
        what = f"Unknown value, expected {expected}" if expected else "Unknown value"
    elif what in _TOO_LARGE:
        what = _NUMBER_BOUNDS
    return Rejected(f"{path or 'the body'}: {what[0].lower()}{what[1:]}", code="invalid_type", param=path or None)


AgeS = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]  # seconds
LifetimeS = Annotated[float, Meta(gt=0, le=MAX_NUMBER)]  # seconds


class LiteLlmCache(Struct, gc=False, rename="kebab"):
    """The member `cache` of a body, as LiteLLM's clients send it. `ttl`, `s_maxage`: seconds. Other fields are ignored."""

    no_store: bool | None = None
    no_cache: bool | None = None
    ttl: LifetimeS | None = None
    s_maxage: AgeS | None = None
    namespace: Annotated[str, Meta(max_length=256)] | None = None
    use_cache: bool | None = None  # ignored: the route decides whether there is a cache

    def to_cache_control(self) -> CacheControl:
        return CacheControl(self.no_store is True, self.no_cache is True, max_age_s=self.s_maxage, keep_s=self.ttl,
                            namespace=self.namespace or "")


class CacheDirectives(Struct, forbid_unknown_fields=True, gc=False, rename="kebab"):
    """The member `stayfast.cache` of a body: Cache-Control directives. `max_age`, `ttl` (of the stored answer): seconds."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: AgeS | None = None
    tags: Annotated[list[Annotated[str, Meta(pattern=f"^(?:{TAG.pattern})$")]], Meta(max_length=MAX_TAGS)] = []
    ttl: LifetimeS | None = None
    namespace: Annotated[str, Meta(max_length=256)] = ""

    def to_cache_control(self) -> CacheControl:
        return CacheControl(self.no_store, self.no_cache, self.only_if_cached, self.max_age, tuple(self.tags), self.ttl,
                            self.namespace)


class StayfastMember(Struct, forbid_unknown_fields=True, gc=False):
    """The member `stayfast` of a body, which no upstream gets. `deadline_ms`: the client's time-out."""

    deadline_ms: Annotated[float, Meta(gt=0, le=86_400_000)] | None = None
    cache: CacheDirectives | None = None


def _decode_extended(api: Api, body: bytes) -> Request:
    """Decode a body with a `stayfast`, `start_within` or LiteLLM `cache` member, and remove these from it."""
    fields = decode_typed(_OBJECT, body)
    n_fields = len(fields)
    extension, litellm_cache = fields.pop("stayfast", None), _pop_litellm_cache(fields)
    within_s = _pop_start_within_s(fields)
    if len(fields) == n_fields:
        return _decode_plain(api, body)
    options = decode_typed(_EXTENSION, bytes(extension), "stayfast") if extension is not None else None
    request = _decode_plain(api, _ENCODER.encode(fields))
    own_cache = options.cache if options is not None else None
    if own_cache is not None and litellm_cache is not None and litellm_cache.to_cache_control() != CacheControl():
        raise Rejected("cache and stayfast.cache set the same options: send one of them.", code="two_caches", param="cache")
    patience_s = options.deadline_ms / 1e3 if options is not None and options.deadline_ms is not None else None
    directives = own_cache if own_cache is not None else litellm_cache
    return msgspec.structs.replace(request, client_timeout_s=patience_s, start_within_s=within_s,
                                   cache=directives.to_cache_control() if directives is not None else None)


def _decode_plain(api: Api, body: bytes) -> Request:
    decoder, roles, to_request = _FORMS[api]
    return to_request(decode_typed(decoder, body, expected=roles), body)


def _pop_start_within_s(fields: RawObject) -> float | None:
    """Remove the time to the first token: a number of seconds, or a text with a unit. Raises Rejected."""
    raw = bytes(fields.pop("start_within", b"null"))
    if raw == b"null":
        return None
    text = raw.decode()
    return parse_start_within_s(text[1:-1] if text.startswith('"') else text, "start_within")


def _pop_litellm_cache(fields: RawObject) -> LiteLlmCache | None:
    """Remove LiteLLM's `cache` member: upstreams reject or ignore it. An object with none of LiteLLM's fields belongs to
    another server and stays.
    """
    raw = bytes(fields.get("cache", b""))
    if raw != b"null" and not raw.startswith(b"{"):
        return None
    if raw != b"null" and (members := _OBJECT.decode(raw)) and _LITELLM_FIELDS.isdisjoint(members):
        return None
    del fields["cache"]
    return decode_typed(_LITELLM_CACHE, raw, "cache") or LiteLlmCache()


def _read_chat(parsed: chat.ChatRequest, body: bytes) -> Request:
    _check_parts(parsed.messages, _CHAT_PARTS)
    limit = parsed.max_completion_tokens if parsed.max_completion_tokens is not None else parsed.max_tokens
    return Request(Api.CHAT, parsed.model, parsed.stream is True, body, _wants_usage(parsed.stream_options), limit,
                   parsed.n or 1, parsed.store is True)


def _check_parts(conversation: Sequence[Any], fields: Mapping[str, tuple[str, ...]]) -> None:
    """Reject parts without a required field. `fields`: the required fields of each part type."""
    for at, message in enumerate(conversation):
        if type(message.content) is list:
            for index, part in enumerate(message.content):
                for name in fields.get(part.type, ()):
                    require(getattr(part, name), f"messages[{at}].content[{index}].{name}")


def _read_completions(parsed: chat.CompletionsRequest, body: bytes) -> Request:
    _check_same_type(parsed.prompt, "prompt")
    is_one = isinstance(parsed.prompt, str) or all(isinstance(item, int) for item in parsed.prompt)  # text, or its tokens
    n_prompts = 1 if is_one else len(parsed.prompt)
    return Request(Api.COMPLETIONS, parsed.model, parsed.stream is True, body, _wants_usage(parsed.stream_options),
                   parsed.max_tokens, (parsed.n or 1) * max(1, n_prompts))


def _wants_usage(options: chat.StreamOptions | None) -> bool:
    return options is not None and options.include_usage is True


def _read_embeddings(parsed: chat.EmbeddingsRequest, body: bytes) -> Request:
    _check_same_type(parsed.input, "input")
    return Request(Api.EMBEDDINGS, parsed.model, False, body)


def _read_rerank(parsed: RerankRequest, body: bytes) -> Request:
    return Request(Api.RERANK, parsed.model, False, body)


def _check_same_type(inputs: str | list[str | int | list[int]], path: str) -> None:
    """Accept one text, several texts, the tokens of one text, or those of several; reject a mixture."""
    if not isinstance(inputs, str) and len({type(item) for item in inputs}) > 1:
        raise Rejected(f"{path}: expected a text, texts, token numbers, or lists of token numbers, not a mixture",
                       code="invalid_type", param=path)


def _read_responses(parsed: responses.ResponsesRequest, body: bytes) -> Request:
    if parsed.input is None and not parsed.prompt and parsed.previous_response_id is None and not parsed.conversation:
        raise missing_field("input")
    is_stateful = (parsed.store is True or parsed.background is True or parsed.previous_response_id is not None
                   or has_value(parsed.conversation, or_empty=False))
    return Request(Api.RESPONSES, parsed.model, parsed.stream is True, body, max_output_tokens=parsed.max_output_tokens,
                   is_stateful=is_stateful, previous_response_id=parsed.previous_response_id,
                   is_background=parsed.background is True, is_stored=parsed.store is None)


def _read_messages(parsed: messages.MessagesRequest, body: bytes) -> Request:
    _check_parts(parsed.messages, _BLOCKS)
    return Request(Api.MESSAGES, parsed.model, parsed.stream is True, body, max_output_tokens=parsed.max_tokens,
                   is_stateful=has_value(parsed.container, or_empty=False))


def _read_count_tokens(parsed: messages.CountRequest, body: bytes) -> Request:
    _check_parts(parsed.messages, _BLOCKS)
    return Request(Api.COUNT_TOKENS, parsed.model, False, body)


def _read_input_tokens(parsed: responses.InputTokensRequest, body: bytes) -> Request:
    return Request(Api.INPUT_TOKENS, parsed.model, False, body)


def _read_tokenize(parsed: TokenizeRequest, body: bytes) -> Request:
    if parsed.messages is not None:
        if parsed.prompt is not None:
            raise Rejected("prompt and messages exclude each other: send one of them.", code="invalid_type", param="prompt")
        _check_parts(parsed.messages, _CHAT_PARTS)
    elif parsed.prompt is None:
        raise missing_field("prompt or messages", param="prompt")
    return Request(Api.TOKENIZE, parsed.model, False, body)


_EXTENSION: Final = msgspec.json.Decoder(StayfastMember | None)
_LITELLM_CACHE: Final = msgspec.json.Decoder(LiteLlmCache | None)
_LITELLM_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(LiteLlmCache))


def _client_form(kind: type[Struct], to_request: Callable[[Any, bytes], Request], roles: str = "",
                 ) -> "tuple[msgspec.json.Decoder[Any], str, Callable[[Any, bytes], Request]]":
    """How a body is decoded: the fields of `kind`, and the gateway's own members, whose values are not parsed. A search of
    the body for their names would take microseconds.
    """
    own = msgspec.defstruct(kind.__name__, [(name, Raw, Raw()) for name in _NOT_FORWARDED], bases=(kind,), gc=False,
                            kw_only=True)
    return msgspec.json.Decoder(own), roles, to_request


_FORMS: Final = {
    Api.CHAT: _client_form(chat.ChatRequest, _read_chat, _ROLES),
    Api.COMPLETIONS: _client_form(chat.CompletionsRequest, _read_completions),
    Api.EMBEDDINGS: _client_form(chat.EmbeddingsRequest, _read_embeddings),
    Api.RERANK: _client_form(RerankRequest, _read_rerank),
    Api.RESPONSES: _client_form(responses.ResponsesRequest, _read_responses),
    Api.MESSAGES: _client_form(messages.MessagesRequest, _read_messages, _ANTHROPIC_ROLES),
    Api.COUNT_TOKENS: _client_form(messages.CountRequest, _read_count_tokens, _ANTHROPIC_ROLES),
    Api.INPUT_TOKENS: _client_form(responses.InputTokensRequest, _read_input_tokens),
    Api.TOKENIZE: _client_form(TokenizeRequest, _read_tokenize, _ROLES),
}


def read_sampling_params(request: Request) -> RequestParams:
    """The numeric sampling parameters, for traces; never text of a client. All are left out if one has the wrong type."""
    try:
        params = _PARAMS.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        params = RequestParams()
    return msgspec.structs.replace(params, max_tokens=request.max_output_tokens,
                                   choice_count=request.n_choices if request.n_choices != 1 else None)


_BODIES: Final[dict[Api, Callable[..., dict[str, Any]]]] = {
    Api.CHAT: chat.encode_body, Api.RESPONSES: responses.encode_body, Api.MESSAGES: messages.encode_body,
    Api.GEMINI: gemini.encode_body, Api.CONVERSE: converse.encode_body}
_TRANSLATABLE: Final = frozenset({
    *((client, upstream) for client in (Api.CHAT, Api.RESPONSES, Api.MESSAGES) for upstream in _BODIES),
    *((api, api) for api in Api),
    *((Api.COMPLETIONS, upstream) for upstream in (Api.CHAT, Api.GEMINI, Api.CONVERSE)), (Api.EMBEDDINGS, Api.GEMINI),
})
_UNSET: Final = (b"", b"null", b"false", b"1")
_NEVER_STREAMED: Final = {
    Api.CHAT: ("audio",), Api.COMPLETIONS: ("best_of", "echo"), Api.RESPONSES: ("background",), Api.MESSAGES: ()}


def can_translate(client: Api, upstream: Api) -> bool:
    """Whether requests and answers can pass between these two dialects (each with itself included)."""
    return (client, upstream) in _TRANSLATABLE


def can_collect_stream(request: Request) -> bool:
    """Whether the whole answer to this request may be fetched as a stream and collected here, so that a part of it exists
    when time runs out.

    Providers refuse to stream some options (`best_of`), stream them in another form (audio) or under other rules (background
    responses). Of several choices each ends by itself, which a compatible server may not report.
    """
    never = _NEVER_STREAMED.get(request.api)
    if never is None or request.n_choices != 1:
        return False
    members = _OBJECT.decode(request.body)
    return all(bytes(members.get(name, b"")) in _UNSET for name in never) and b'"audio"' not in bytes(
        members.get("modalities", b""))


def encode(request: Request, to: Api, model: str, *, stream: bool, want_usage: bool = False) -> bytes:
    """The body for an upstream of dialect `to`. Raises Rejected for a field without an equivalent there; the `body` function
    of each dialect lists what is dropped. `want_usage`: ask for usage in chat and completions streams even if the client did
    not; the transcoder must then hide it. Translated chat streams always ask.
    """
    if request.api is to:
        add_usage = want_usage and stream and not request.include_usage and to in (Api.CHAT, Api.COMPLETIONS)
        if model == request.model and stream == request.stream and not add_usage:
            return request.body
        return _replace_members(request, model, stream, add_usage)
    if not can_translate(request.api, to):
        raise Rejected(f"{request.api.value} requests are not supported by this model: its upstream speaks {to.value}",
                       code="unsupported_api", param="model")
    if request.api is Api.EMBEDDINGS:
        return _ENCODER.encode(encode_embeddings(decode_typed(chat.EMBEDDINGS_DECODER, request.body), model))
    parsed = parse_conversation(request)
    if parsed.native:
        raise untranslatable_field(parsed.native[0], to.value)
    if to is not Api.GEMINI and parsed.google is not None and parsed.google.cached_content is not None:
        raise untranslatable_field("extra_body.google.cached_content", to.value)
    fields = _BODIES[to](parsed, model, stream=stream)
    if to is Api.CONVERSE and converse.has_members(request.body):
        fields = converse.add_members(fields, decode_typed(converse.MEMBERS_DECODER, request.body))
    return _ENCODER.encode(fields)


def parse_conversation(request: Request) -> Conversation:
    """The request in the normal form. Raises Rejected; also for a request that is no conversation, such as embeddings."""
    match request.api:
        case Api.CHAT:
            return chat.parse_chat(decode_typed(chat.CHAT_DECODER, request.body))
        case Api.COMPLETIONS:
            return chat.parse_completions(decode_typed(chat.COMPLETIONS_DECODER, request.body))
        case Api.RESPONSES:
            return responses.parse_responses(decode_typed(responses.RESPONSES_DECODER, request.body))
        case Api.MESSAGES:
            return messages.parse_messages(decode_typed(messages.MESSAGES_DECODER, request.body))
    raise Rejected(f"{request.api.value} requests contain no conversation", code="unsupported_api")


def _replace_members(request: Request, model: str, stream: bool, add_usage: bool) -> bytes:
    fields: dict[str, Any] = decode_typed(_OBJECT, request.body)
    if model != request.model:
        fields["model"] = model
    if stream != request.stream:
        fields["stream"] = stream
        if not stream:
            fields.pop("stream_options", None)  # rejected without a stream
    if add_usage:
        before = fields.get("stream_options")
        options: RawObject = {} if before is None or bytes(before) == b"null" else _OBJECT.decode(before)
        fields["stream_options"] = {**options, "include_usage": _TRUE}
    return _ENCODER.encode(fields)
