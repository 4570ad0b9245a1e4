"""Untrusted JSON in, a validated `Request` out: bytes are bounded before they are parsed, and a complaint names its field.

Depth is bounded without parsing: with its strings cut out, a document is only brackets, and its depth is their highest
running sum. Most bodies have fewer brackets than the limit has levels and skip even that. The sum takes 20 ns a bracket, so
their number is bounded as well.
Every field that a translation reads is typed, so nothing after this can stumble over a wrong type; fields nobody reads pass
as they are. The body travels on verbatim. Values of the client never stand in a message: they may be prompts.
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from stayfast.core.errors import Rejected
from stayfast.core.types import Api, CacheControl, Request
from stayfast.wire.chat import request as chat
from stayfast.wire.dialect import MAX_NUMBER, is_given, missing, required
from stayfast.wire.messages import request as messages
from stayfast.wire.responses import request as responses

T = TypeVar("T")

TAG: Final = re.compile(r"[!-+\--~]{1,64}")
TAG_FORM: Final = "1 to 64 visible ASCII characters but the comma"
MOST_TAGS: Final = 16
MAX_DEPTH: Final = 512  # parsers and printers take a frame a level, and Python has 1000 of them
MAX_MARKS: Final = 2_000_000  # brackets outside of strings, and quotes of strings that hold brackets

_ROLES: Final = "one of system, developer, user, assistant, tool, function"
_ANTHROPIC_ROLES: Final = "one of user, assistant, system"
_CHAT_PARTS: Final = {"text": ("text",), "image_url": ("image_url",)}
_BLOCKS: Final = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("tool_use_id",)}
_EXTENSION_MARK: Final = b'"stayfast"'
_CACHE_MARK: Final = b'"cache"'
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SHORT: Final = 65_536  # bytes
_STEPS: Final = bytes.maketrans(b"{}[]", b"\x01\xff\x01\xff")
_NO_MARKS: Final = bytes(sorted(set(range(256)) - set(b'{}[]"')))
_HALF_A_PAIR: Final = re.compile(rb"\\u(?:d[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..\\u)d[c-f])", re.IGNORECASE)
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_TOO_LARGE: Final = ("Number out of range", "Integer value out of range")  # for a float; for an int of 4300 digits and more
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
    check(body, limits.max_depth)
    if body.find(_EXTENSION_MARK) >= 0 or body.find(_CACHE_MARK) >= 0:  # `in` first makes an error, and takes twice as long
        return _extended(api, body)
    return _DECODERS[api](body)


def check(body: bytes, max_depth: int) -> None:
    """Refuse what no parser should see: not UTF-8, or nested deeper than `max_depth`. Raises Rejected."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Rejected(f"the body is not valid UTF-8 (byte {error.start})", code="invalid_json") from None
    if len(body) <= _SHORT:  # this goes from one to the next, where `count` looks at each byte
        n_brackets = len(body) - len(body.replace(b"[", b"").replace(b"{", b""))
    else:  # of which somebody may send thirty million
        n_brackets = body.count(b"[") + body.count(b"{")
    if n_brackets > max_depth and _is_deeper(body, max_depth):
        raise too_deep(max_depth)


def too_deep(max_depth: int) -> Rejected:
    return Rejected(f"the body is nested deeper than {max_depth} levels", code="too_deep")


def _is_deeper(body: bytes, max_depth: int) -> bool:
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _NO_MARKS).replace(b'""', b"")  # two quotes less change nothing for what is behind them
    if marks.count(b'"') <= MAX_MARKS:
        brackets = b"".join(marks.split(b'"')[::2])
        if len(brackets) <= MAX_MARKS:
            return max(accumulate(array("b", brackets.translate(_STEPS))), default=0) > max_depth
    raise Rejected(f"the body holds more than {MAX_MARKS} brackets", code="too_complex")


def typed(decoder: "msgspec.json.Decoder[T]", body: bytes, at: str = "", expected: str = "") -> T:
    """Parse `body`, which stands at path `at` of the request; `expected`: the words that a field with certain ones may be.
    Raises Rejected with the offending field as `param`.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), at, expected) from None
    except msgspec.DecodeError as error:
        why = "half of a surrogate pair" if _HALF_A_PAIR.search(body.replace(b"\\\\", b"")) else error
        raise Rejected(f"the body is not valid JSON: {why}", code="invalid_json") from None
    except RecursionError:
        raise Rejected("the body is nested too deeply", code="too_deep") from None


def _wrong_type(message: str, at: str, expected: str) -> Rejected:
    match = _AT.match(message)
    assert match is not None
    what = match["what"]
    path = at + (match["path"] or "$")[1:]
    lacks = _MISSING.match(what)
    if lacks is not None:
        return missing(f"{path}.{lacks['field']}".lstrip("."))
    path = path.lstrip(".")
    if what.startswith("Invalid value"):
        what = f"Unknown value, expected {expected}" if expected else "Unknown value"
    elif what in _TOO_LARGE:
        what = _NUMBER_BOUNDS
    return Rejected(f"{path or 'the body'}: {what[0].lower()}{what[1:]}", code="invalid_type", param=path or None)


Age = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]  # seconds
Life = Annotated[float, Meta(gt=0, le=MAX_NUMBER)]  # seconds


class CacheWord(Struct, gc=False, rename="kebab"):
    """The member `cache` of a body, as LiteLLM's clients send it. `ttl`, `s_maxage`: seconds. Other words say nothing."""

    no_store: bool | None = None
    no_cache: bool | None = None
    ttl: Life | None = None
    s_maxage: Age | None = None
    namespace: Annotated[str, Meta(max_length=256)] | None = None
    use_cache: bool | None = None  # whether a cache is wanted is its route's business

    def control(self) -> CacheControl:
        return CacheControl(self.no_store is True, self.no_cache is True, max_age_s=self.s_maxage, keep_s=self.ttl,
                            namespace=self.namespace or "")


class CacheWish(Struct, forbid_unknown_fields=True, gc=False, rename="kebab"):
    """The words of Cache-Control in a body. `max_age`, `ttl` (to keep the answer): seconds."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: Age | None = None
    tags: Annotated[list[Annotated[str, Meta(pattern=f"^(?:{TAG.pattern})$")]], Meta(max_length=MOST_TAGS)] = []
    ttl: Life | None = None
    namespace: Annotated[str, Meta(max_length=256)] = ""

    def control(self) -> CacheControl:
        return CacheControl(self.no_store, self.no_cache, self.only_if_cached, self.max_age, tuple(self.tags), self.ttl,
                            self.namespace)


class Extension(Struct, forbid_unknown_fields=True, gc=False):
    """The member `stayfast` of a body: what the gateway is told and no upstream is. `deadline_ms`: the client's patience."""

    deadline_ms: Annotated[float, Meta(gt=0, le=86_400_000)] | None = None
    cache: CacheWish | None = None


def _extended(api: Api, body: bytes) -> Request:
    fields = typed(_OBJECT, body)
    extension, theirs = fields.pop("stayfast", None), _client_cache_word(fields)
    if extension is None and theirs is None:
        return _DECODERS[api](body)
    options = typed(_EXTENSION, bytes(extension), "stayfast") if extension is not None else None
    request = _DECODERS[api](msgspec.json.encode(fields))
    ours = options.cache if options is not None else None
    if ours is not None and theirs is not None and theirs.control() != CacheControl():
        raise Rejected("cache and stayfast.cache say the same: send one of them.", code="two_caches", param="cache")
    patience_s = options.deadline_ms / 1e3 if options is not None and options.deadline_ms is not None else None
    wish = ours if ours is not None else theirs
    return msgspec.structs.replace(request, patience_s=patience_s, cache=wish.control() if wish is not None else None)


def _client_cache_word(fields: dict[str, msgspec.Raw]) -> CacheWord | None:
    """What LiteLLM's clients say of caches, which is taken out of the body: its upstream would refuse it, or not know it. An
    object that holds none of these words is another server's own, and stays.
    """
    raw = bytes(fields.get("cache", b""))
    if raw != b"null" and not raw.startswith(b"{"):
        return None
    if raw != b"null" and (words := _OBJECT.decode(raw)) and _THEIR_WORDS.isdisjoint(words):
        return None
    del fields["cache"]
    return typed(_THEIR_CACHE, raw, "cache") or CacheWord()


def _chat(body: bytes) -> Request:
    parsed = typed(chat.CHAT, body, expected=_ROLES)
    _check_parts(parsed.messages, _CHAT_PARTS)
    limit = parsed.max_completion_tokens if parsed.max_completion_tokens is not None else parsed.max_tokens
    return Request(Api.CHAT, parsed.model, parsed.stream is True, body, _wants_usage(parsed.stream_options), limit,
                   parsed.n or 1, parsed.store is True)


def _check_parts(conversation: Sequence[Any], fields: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse parts that lack a field. `fields`: those which each type must have."""
    for at, message in enumerate(conversation):
        if type(message.content) is list:
            for index, part in enumerate(message.content):
                for name in fields.get(part.type, ()):
                    required(getattr(part, name), f"messages[{at}].content[{index}].{name}")


def _completions(body: bytes) -> Request:
    parsed = typed(chat.COMPLETIONS, body)
    _check_alike(parsed.prompt, "prompt")
    is_one = isinstance(parsed.prompt, str) or all(isinstance(item, int) for item in parsed.prompt)  # tokens of one prompt
    n_prompts = 1 if is_one else len(parsed.prompt)
    return Request(Api.COMPLETIONS, parsed.model, parsed.stream is True, body, _wants_usage(parsed.stream_options),
                   parsed.max_tokens, (parsed.n or 1) * max(1, n_prompts))


def _wants_usage(options: chat.StreamOptions | None) -> bool:
    return options is not None and options.include_usage is True


def _embeddings(body: bytes) -> Request:
    parsed = typed(chat.EMBEDDINGS, body)
    _check_alike(parsed.input, "input")
    return Request(Api.EMBEDDINGS, parsed.model, False, body)


def _check_alike(inputs: str | list[str | int | list[int]], path: str) -> None:
    """Texts, or the tokens of one, or those of several: no mixture."""
    if not isinstance(inputs, str) and len({type(item) for item in inputs}) > 1:
        raise Rejected(f"{path}: expected a text, texts, token numbers, or lists of token numbers, not a mixture",
                       code="invalid_type", param=path)


def _responses(body: bytes) -> Request:
    parsed = typed(responses.RESPONSES, body)
    if parsed.input is None and not parsed.prompt and parsed.previous_response_id is None and not parsed.conversation:
        raise missing("input")
    is_stateful = (parsed.store is True or parsed.background is True or parsed.previous_response_id is not None
                   or is_given(parsed.conversation, or_empty=False))
    return Request(Api.RESPONSES, parsed.model, parsed.stream is True, body, max_output_tokens=parsed.max_output_tokens,
                   is_stateful=is_stateful, previous_response_id=parsed.previous_response_id, is_stored=parsed.store is None)


def _messages(body: bytes) -> Request:
    parsed = typed(messages.MESSAGES, body, expected=_ANTHROPIC_ROLES)
    _check_parts(parsed.messages, _BLOCKS)
    return Request(Api.MESSAGES, parsed.model, parsed.stream is True, body, max_output_tokens=parsed.max_tokens,
                   is_stateful=is_given(parsed.container, or_empty=False))


def _count_tokens(body: bytes) -> Request:
    parsed = typed(messages.COUNT, body, expected=_ANTHROPIC_ROLES)
    _check_parts(parsed.messages, _BLOCKS)
    return Request(Api.COUNT_TOKENS, parsed.model, False, body)


_EXTENSION: Final = msgspec.json.Decoder(Extension | None)
_THEIR_CACHE: Final = msgspec.json.Decoder(CacheWord | None)
_THEIR_WORDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(CacheWord))
_DECODERS: Final[dict[Api, Callable[[bytes], Request]]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.EMBEDDINGS: _embeddings,
    Api.RESPONSES: _responses,
    Api.MESSAGES: _messages,
    Api.COUNT_TOKENS: _count_tokens,
}
