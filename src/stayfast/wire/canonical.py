"""A request as a cache sees it: what decides the answer, in one form for all ways of saying it.

Problem: two requests that mean the same differ in bytes (white space, the order of members, 0.0 for 0), and two that differ
in one member that nobody thought of get each other's answers. Rule: everything in the body counts, but for the members
that are known not to touch the answer (`_NO_MATTER`) and the marks for a provider's prompt cache. What is unknown counts.

    scope    = BLAKE2b of (who asks, through which route) and of all members but the question
    question = the text of the last user message
    key      = BLAKE2b of (the same, question)

Normalised: the order of members and of tools, white space between them, numbers (0.20, 2e-1; of sampling 1.0 and 1 as well),
line ends, Unicode's composed form, white space around the question and around the system prompt, and members that are known
to say nothing where they are null or empty (`_MAY_BE_EMPTY`), or as they are without a word (one answer, `logprobs: false`,
`tool_choice: "auto"` with tools). Not normalised: text of earlier turns (it is our own echo),
white space within a text (indentation is meaning in code), and the prompt of a completion, which goes on where it ends. One
text part is the same as its text.

Never a question for a cache, each with its word (`why_not`): what must not be sent twice; several answers at once;
log-probabilities (they tell of one drawing); tools that the model must call, and tools that run at the provider; answers of
tools in the conversation (they are as old as they are); pictures, sound and files; a conversation that does not end with
a user's words: agents send those by the thousand, and all would share one question; and a body of more than `MAX_BYTES`,
which nobody else on the loop should wait for: half a megabyte of words takes 1 ms, of numbers 8.
When wrong: a member given twice counts as its last, and an upstream might take the first; both are the same client's.
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
    """What was asked. With `why_not` nothing else is set: no cache may answer or remember it."""

    why_not: str = ""
    scope: bytes = b""  # all but the question, as canonical JSON
    question: bytes = b""  # UTF-8, or canonical JSON where it is no text
    temperature: float | None = None
    is_sampled: bool = True  # whether drawing has a part in the answer
    is_seeded: bool = False


class _NotCacheable(Exception):  # no error: how a reader says that no cache may answer
    """The word is its argument."""


MAX_BYTES: Final = 512 * 1024
KEY_BYTES: Final = 32
_EXACT: Final = 2**53  # integers up to here are the same as floats
_NO_MATTER: Final = frozenset(("stream", "stream_options", "service_tier", "prompt_cache_key", "prompt_cache_retention",
                               "store", "cache_control"))
_MAY_BE_EMPTY: Final = frozenset((
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "n",
    "stop", "stop_sequences", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "functions", "function_call", "response_format", "user", "metadata", "modalities", "audio", "mcp_servers",
    "web_search_options", "max_completion_tokens", "max_output_tokens", "reasoning_effort", "verbosity", "text", "include",
    "truncation"))  # not max_tokens: null may mean no bound
_EMPTY: Final[tuple[Any, ...]] = (None, [], {})
_LOOKED_AT: Final = _NO_MATTER | _MAY_BE_EMPTY
_OF_A_LINE: Final = ("name", "refusal", "tool_calls", "function_call", "audio")  # of a message: null says nothing
_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")  # for a provider's prompt cache, in parts and messages
_TEXTS: Final = frozenset(("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "tool_use"))
_RESULTS: Final = frozenset(("tool_result", "tool", "function"))
_SPOKEN: Final = ("message", "reasoning")  # of a responses request's items
_STATEFUL: Final = ("prompt", "context_management", "previous_response_id", "conversation", "background", "container")
_TOOLS: Final = ("tools", "tool_choice", "function_call", "web_search_options", "mcp_servers")
_CHECKED: Final = frozenset((*_STATEFUL, *_TOOLS, "logprobs", "top_logprobs", "audio", "modalities"))
_OWN_TOOLS: Final = frozenset((None, "function", "custom"))
_FREE_CHOICES: Final = frozenset((None, "auto", "none"))
_LEADING: Final = frozenset(("system", "developer"))
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_ENDLESS: Final = re.compile(r"(?<![^\w\x00-\x7f])[^\w\x00-\x7f]{32}")  # all marks that combine are among these
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def canonicalize(request: Request) -> CanonicalRequest:
    """The canonical form of a validated request. Costs about 5 us for a short one."""
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
        for name in _LOOKED_AT.intersection(fields):
            _settle(fields, name)
        temperature = fields.get("temperature")
        return CanonicalRequest("", _encode(fields), question, temperature, api is not Api.EMBEDDINGS,
                                fields.get("seed") is not None)
    except _NotCacheable as why:
        return CanonicalRequest(str(why))
    except (ValueError, TypeError, KeyError, AttributeError):  # of a shape that only the upstream understands
        return CanonicalRequest("unreadable")


def identity_bytes(*parts: str | None) -> bytes:
    """Names that the body does not say (tenant, route and the like), as canonical JSON."""
    return _encode(parts)


def scope_bytes(canonical: CanonicalRequest, identity: bytes) -> bytes:
    """All that two requests must share, but the question: two JSON documents. who: as `identity_bytes` has it."""
    return identity + canonical.scope


def scope_of(terms: bytes) -> bytes:
    """The digest of what two requests must share: 32 bytes."""
    return blake2b(terms, digest_size=KEY_BYTES).digest()


def key_digest(scope: bytes, canonical: CanonicalRequest) -> bytes:
    """The digest under which an answer is remembered: 32 bytes. It begins with another one, of the terms, so that most
    questions are one block of 128 bytes with it, however long the terms are.
    """
    digest = blake2b(scope_of(scope), digest_size=KEY_BYTES)
    digest.update(canonical.question)
    return digest.digest()


def _settle(fields: Json, name: str) -> None:
    """One of the members that are known to say nothing, or not always."""
    value = fields[name]
    if name in _NO_MATTER or value in _EMPTY or (name == "n" and value == 1):
        del fields[name]
    elif type(value) is float and value.is_integer() and -_EXACT < value < _EXACT:
        fields[name] = int(value)


def _take(fields: Json, name: str) -> Any:
    """A member's value, which the scope then knows to be missing."""
    value = fields[name]
    fields[name] = None
    return value


def text_of(text: str) -> str:
    """A text as it is compared: composed form, line ends, no white space around it. One with dozens of marks on a letter,
    which nobody writes, stays as it is: to put them in order takes the square of their number, a minute for half a megabyte.
    """
    if not text.isascii() and _ENDLESS.search(text) is None:
        text = normalize("NFC", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.strip()


def _check_tools(fields: Json) -> None:
    tools = fields.get("tools")
    for tool in tools or ():
        if tool.get("type") not in _OWN_TOOLS:
            raise _NotCacheable("hosted_tools")
        tool.pop("cache_control", None)
    if tools and len(tools) > 1:
        tools.sort(key=_name)
    if fields.get("web_search_options") is not None or fields.get("mcp_servers"):
        raise _NotCacheable("hosted_tools")
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("type")
    if choice not in _FREE_CHOICES or isinstance(fields.get("function_call"), dict):
        raise _NotCacheable("tool_choice")
    if tools and fields.get("tool_choice") == "auto":
        del fields["tool_choice"]


def _name(tool: Json) -> str:
    name = (tool.get("function") or tool).get("name")
    return name if type(name) is str else ""


def _check(fields: Json) -> None:
    """What holds for all dialects that have a conversation."""
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
        for mark in _MARKS:
            part.pop(mark, None)


def _plain(content: Any) -> Any:
    """A content with its ends trimmed; one text part is its text."""
    if type(content) is str:
        return text_of(content)
    if type(content) is list and len(content) == 1 and content[0].keys() <= {"type", "text"}:
        return text_of(content[0]["text"])
    return content


def _conversation(messages: list[Json]) -> bytes:
    """The question of a conversation, which is taken out of it."""
    for message in messages:
        if message.get("role") in _RESULTS or ("type" in message and message["type"] not in _SPOKEN):
            raise _NotCacheable("tool_results")
        if len(message) > 2:  # role, content
            for name in [name for name in _OF_A_LINE if name in message and message[name] is None]:
                del message[name]
        content = message.get("content")
        if type(content) is list:
            _check_parts(content)
    for message in messages:
        if message.get("role") not in _LEADING:
            break
        message["content"] = _plain(message["content"])
    last = messages[-1]
    content = _plain(last.get("content")) if last.get("role") == "user" else None
    if content is None or not _has_words(content):
        raise _NotCacheable("no_question")
    if type(content) is str:
        last["content"] = None
        return content.encode()
    last["content"] = []  # a text that looks like parts is another question
    return bytes(_encode(content))


def _has_words(content: Any) -> bool:
    if type(content) is str:
        return bool(content)
    return any(type(part.get("text")) is str and part["text"].strip() for part in content)


def _chat(fields: Json) -> bytes:
    _check(fields)
    return _conversation(fields["messages"])


def _messages(fields: Json) -> bytes:
    _check(fields)
    system = fields.get("system")
    if system is not None:
        if type(system) is list:
            _check_parts(system)
        fields["system"] = _plain(system)
    return _conversation(fields["messages"])


def _responses(fields: Json) -> bytes:
    _check(fields)
    if type(fields.get("instructions")) is str:
        fields["instructions"] = text_of(fields["instructions"])
    whole = fields.get("input")
    if type(whole) is list:
        for item in whole:
            if item.get("type") == "message" and "role" in item:
                del item["type"]  # it is one without it as well
        return _conversation(whole)
    fields["input"] = [{"role": "user", "content": None}]  # the same as one message
    text = text_of(whole) if type(whole) is str else ""
    if not text:
        raise _NotCacheable("no_question")
    return text.encode()


def _completions(fields: Json) -> bytes:
    if fields.get("logprobs") not in (None, False):
        raise _NotCacheable("logprobs")
    if (fields.get("best_of") or 1) > 1:
        raise _NotCacheable("n")
    prompt = _take(fields, "prompt")
    if not prompt:
        raise _NotCacheable("no_question")
    return bytes(_encode(prompt))


def _embeddings(fields: Json) -> bytes:
    return bytes(_encode(_take(fields, "input")))


_READERS: Final[dict[Api, Callable[[Json], bytes]]] = {
    Api.CHAT: _chat, Api.COMPLETIONS: _completions, Api.EMBEDDINGS: _embeddings, Api.MESSAGES: _messages,
    Api.RESPONSES: _responses}
