"""The canonical form of a request, from which its cache key is made.

Problem: equal requests differ in bytes (white space, order of members, 0.0 for 0), and a key that ignores a relevant member
serves a wrong answer. Rule: every member of the body is part of the key, unknown ones included, except members that never
change the answer (`_IRRELEVANT`) and markers for a provider's prompt cache.

    scope    = BLAKE2b of (client and route, all members but the question)
    question = the text of the last user message
    key      = BLAKE2b of (scope, question)

Normalised: the order of members and of tools; white space between them; numbers (0.20 and 2e-1; 1.0 and 1 in sampling); line
ends; Unicode (NFC); white space around the question and the system prompt; a single text part, which becomes its text;
members that mean their default if null or empty (`_MAY_BE_EMPTY`); and explicit defaults (one choice, `logprobs: false`,
`tool_choice: "auto"` with tools). Not normalised: earlier turns, which the client repeats exactly; white space inside a
text, which matters in code; and the prompt of a completion, which the model continues.

Not cacheable, each with a reason (`exclusion_reason`): requests that must not be sent twice; several choices;
log-probabilities, which describe one sample; forced tool calls and tools that the provider runs; tool results, which may
be outdated; images, audio and files; conversations that do not end with user text (agents send thousands, and all would
share one question); and bodies over `MAX_BYTES`, which block the event loop: half a megabyte takes 1 ms for text, 8 ms for
numbers. When wrong: of a duplicate member the last value counts, while the upstream may use the first; both come from one
client.
"""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final
from unicodedata import normalize

import msgspec
from msgspec import Struct

from stayfast.core.types import Api, Request

Json = dict[str, Any]


class CanonicalRequest(Struct, frozen=True, gc=False):
    why_not: str = ""  # why the request is not cacheable; nothing else is set then
    scope: bytes = b""  # all members but the question, as canonical JSON
    question: bytes = b""  # UTF-8, or canonical JSON if it is not plain text
    temperature: float | None = None
    is_sampled: bool = True  # False: the answer is deterministic, like embeddings
    is_seeded: bool = False


class _NotCacheable(Exception):  # internal: its argument becomes `exclusion_reason`
    pass


MAX_BYTES: Final = 512 * 1024
KEY_BYTES: Final = 32
_MAX_EXACT: Final = 2**53  # integers up to here are exact as floats
_IRRELEVANT: Final = frozenset(("stream", "stream_options", "service_tier", "prompt_cache_key", "prompt_cache_retention",
                               "store", "cache_control"))
_MAY_BE_EMPTY: Final = frozenset((
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "n",
    "stop", "stop_sequences", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "functions", "function_call", "response_format", "user", "metadata", "modalities", "audio", "mcp_servers",
    "web_search_options", "max_completion_tokens", "max_output_tokens", "reasoning_effort", "verbosity", "text", "include",
    "truncation"))  # not max_tokens: null may mean no limit
_EMPTY: Final[tuple[Any, ...]] = (None, [], {})
_NORMALIZED: Final = _IRRELEVANT | _MAY_BE_EMPTY
_NULLABLE: Final = ("name", "refusal", "tool_calls", "function_call", "audio")  # of a message: null means absent
_CACHE_MARKERS: Final = ("cache_control", "prompt_cache_breakpoint")
_TEXTS: Final = frozenset(("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "tool_use"))
_RESULTS: Final = frozenset(("tool_result", "tool", "function"))
_MESSAGE_ITEMS: Final = ("message", "reasoning")  # of a responses request
_STATEFUL: Final = ("prompt", "context_management", "previous_response_id", "conversation", "background", "container")
_TOOLS: Final = ("tools", "tool_choice", "function_call", "web_search_options", "mcp_servers")
_CHECKED: Final = frozenset((*_STATEFUL, *_TOOLS, "logprobs", "top_logprobs", "audio", "modalities"))
_CLIENT_TOOLS: Final = frozenset((None, "function", "custom"))
_FREE_CHOICES: Final = frozenset((None, "auto", "none"))
_INSTRUCTION_ROLES: Final = frozenset(("system", "developer"))
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_MANY_MARKS: Final = re.compile(r"(?<![^\w\x00-\x7f])[^\w\x00-\x7f]{32}")  # the class includes all combining marks
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def canonicalize(request: Request) -> CanonicalRequest:
    """The canonical form of a validated request. Takes about 5 us for a short one."""
    api, body = request.api, request.body
    if api not in _READERS:
        return CanonicalRequest("api")
    if request.n_choices > 1:
        return CanonicalRequest("n")
    if request.is_stateful:
        return CanonicalRequest("stateful")
    if len(body) > MAX_BYTES:
        return CanonicalRequest("large")
    try:
        fields = _OBJECT.decode(body)
        question = _READERS[api](fields)
        for name in _NORMALIZED.intersection(fields):
            _normalize_member(fields, name)
        temperature = fields.get("temperature")
        return CanonicalRequest("", _encode(fields), question, temperature, api.can_stream,
                                fields.get("seed") is not None)
    except _NotCacheable as why:
        return CanonicalRequest(str(why))
    except (ValueError, TypeError, KeyError, AttributeError):  # a form that only the upstream knows
        return CanonicalRequest("unreadable")


def identity_bytes(*parts: str | None) -> bytes:
    """Names outside the body (tenant, route and the like), as canonical JSON."""
    return _encode(parts)


def scope_bytes(canonical: CanonicalRequest, identity: bytes) -> bytes:
    """Everything that two requests must share, except the question: two JSON documents. `identity`: of `identity_bytes`."""
    return identity + canonical.scope


def scope_digest(scope: bytes) -> bytes:
    """The 32-byte digest of `scope_bytes`."""
    return blake2b(scope, digest_size=KEY_BYTES).digest()


def key_digest(scope: bytes, canonical: CanonicalRequest) -> bytes:
    """The 32-byte cache key. It hashes the digest of the scope and the question: for most questions one 128-byte block,
    however long the scope is.
    """
    digest = blake2b(scope_digest(scope), digest_size=KEY_BYTES)
    digest.update(canonical.question)
    return digest.digest()


def _normalize_member(fields: Json, name: str) -> None:
    """Remove an irrelevant member or a default value; write a float as an integer if it is one."""
    value = fields[name]
    if name in _IRRELEVANT or value in _EMPTY or (name == "n" and value == 1):
        del fields[name]
    elif type(value) is float and value.is_integer() and -_MAX_EXACT < value < _MAX_EXACT:
        fields[name] = int(value)


def _take_member(fields: Json, name: str) -> Any:
    """Return a member's value and replace it by None: the scope keeps the member's presence."""
    value = fields[name]
    fields[name] = None
    return value


def normalize_text(text: str) -> str:
    """Normalise a text: NFC, line ends, no surrounding white space. NFC is skipped for dozens of combining marks on one
    letter: sorting them takes quadratic time, a minute for half a megabyte.
    """
    if not text.isascii() and _MANY_MARKS.search(text) is None:
        text = normalize("NFC", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.strip()


def _check_tools(fields: Json) -> None:
    tools = fields.get("tools")
    for tool in tools or ():
        if tool.get("type") not in _CLIENT_TOOLS:
            raise _NotCacheable("hosted_tools")
        tool.pop("cache_control", None)
    if tools and len(tools) > 1:
        tools.sort(key=_tool_name)
    if fields.get("web_search_options") is not None or fields.get("mcp_servers"):
        raise _NotCacheable("hosted_tools")
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("type")
    if choice not in _FREE_CHOICES or isinstance(fields.get("function_call"), dict):
        raise _NotCacheable("tool_choice")
    if tools and fields.get("tool_choice") == "auto":
        del fields["tool_choice"]


def _tool_name(tool: Json) -> str:
    name = (tool.get("function") or tool).get("name")
    return name if type(name) is str else ""


def _check_fields(fields: Json) -> None:
    """The checks that chat, messages and responses share."""
    if _CHECKED.isdisjoint(fields):
        return
    for name in _STATEFUL:
        if fields.get(name):
            raise _NotCacheable("stateful")
    if fields.get("logprobs") or fields.get("top_logprobs"):
        raise _NotCacheable("logprobs")
    if fields.get("logprobs") is False:
        del fields["logprobs"]
    if fields.get("audio") or "audio" in (fields.get("modalities") or ()):
        raise _NotCacheable("media")
    _check_tools(fields)


def _check_parts(parts: list[Json]) -> None:
    for part in parts:
        kind = part["type"]
        if kind not in _TEXTS:
            raise _NotCacheable("tool_results" if kind in _RESULTS else "media")
        for marker in _CACHE_MARKERS:
            part.pop(marker, None)


def _normalize_content(content: Any) -> Any:
    """Normalise a text; replace a single text part by its text."""
    if type(content) is str:
        return normalize_text(content)
    if type(content) is list and len(content) == 1 and content[0].keys() <= {"type", "text"}:
        return normalize_text(content[0]["text"])
    return content


def _take_question(messages: list[Json]) -> bytes:
    """Check and normalise a conversation. Removes and returns its question."""
    for message in messages:
        if message.get("role") in _RESULTS or ("type" in message and message["type"] not in _MESSAGE_ITEMS):
            raise _NotCacheable("tool_results")
        if len(message) > 2:  # more than role and content
            for name in [name for name in _NULLABLE if name in message and message[name] is None]:
                del message[name]
        content = message.get("content")
        if type(content) is list:
            _check_parts(content)
    for message in messages:
        if message.get("role") not in _INSTRUCTION_ROLES:
            break
        message["content"] = _normalize_content(message["content"])
    last = messages[-1]
    content = _normalize_content(last.get("content")) if last.get("role") == "user" else None
    if content is None or not _has_text(content):
        raise _NotCacheable("no_question")
    if type(content) is str:
        last["content"] = None
        return content.encode()
    last["content"] = []  # differs from None: a text that looks like encoded parts has another scope
    return bytes(_encode(content))


def _has_text(content: Any) -> bool:
    if type(content) is str:
        return bool(content)
    return any(type(part.get("text")) is str and part["text"].strip() for part in content)


def _read_chat(fields: Json) -> bytes:
    _check_fields(fields)
    return _take_question(fields["messages"])


def _read_messages(fields: Json) -> bytes:
    _check_fields(fields)
    system = fields.get("system")
    if system is not None:
        if type(system) is list:
            _check_parts(system)
        fields["system"] = _normalize_content(system)
    return _take_question(fields["messages"])


def _read_responses(fields: Json) -> bytes:
    _check_fields(fields)
    if type(fields.get("instructions")) is str:
        fields["instructions"] = normalize_text(fields["instructions"])
    whole = fields.get("input")
    if type(whole) is list:
        for item in whole:
            if item.get("type") == "message" and "role" in item:
                del item["type"]  # "message" is the default
        return _take_question(whole)
    fields["input"] = [{"role": "user", "content": None}]  # equal to the input as one user message
    text = normalize_text(whole) if type(whole) is str else ""
    if not text:
        raise _NotCacheable("no_question")
    return text.encode()


def _read_completions(fields: Json) -> bytes:
    if fields.get("logprobs") not in (None, False):
        raise _NotCacheable("logprobs")
    if (fields.get("best_of") or 1) > 1:
        raise _NotCacheable("n")
    prompt = _take_member(fields, "prompt")
    if not prompt:
        raise _NotCacheable("no_question")
    return bytes(_encode(prompt))


_READERS: Final[dict[Api, Callable[[Json], bytes]]] = {
    Api.CHAT: _read_chat, Api.COMPLETIONS: _read_completions, Api.MESSAGES: _read_messages, Api.RESPONSES: _read_responses,
    Api.EMBEDDINGS: lambda fields: bytes(_encode(_take_member(fields, "input"))),
    Api.RERANK: lambda fields: bytes(_encode([_take_member(fields, "query"), _take_member(fields, "documents")]))}
