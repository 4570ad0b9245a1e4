"""What providers with OpenAI's or Anthropic's protocol refuse or report otherwise, as changes of a request's body.

Problem: "OpenAI-compatible" providers refuse fields, names and ids that OpenAI accepts, with a 400 or 422 for the client.

    max_tokens                only max_tokens is known                 max_completion_tokens is renamed
    max_completion_tokens     only max_completion_tokens is known      max_tokens is renamed
    no_stream_options         stream_options is refused                removed; the usage comes unrequested
    no_parallel_tool_calls    parallel_tool_calls is refused           removed
    no_seed                   seed is refused                          removed
    random_seed               seed has this name                       renamed
    tool_id_9                 ids of tool calls have 9 letters         others become digests, alike in call and result
    json_word                 JSON mode needs the word in a message    a system message names it
    no_developer_role         the role developer is unknown            becomes system
    system_first              one system message, at the beginning     all are joined there
    no_message_names          messages have no name                    removed
    vertex_anthropic          the path names the model                 model removed, anthropic_version added
    guided_json               vLLM before structured outputs           schema of response_format moves to guided_json
    compact_json              JSON is padded with blanks               schema: an LLGuidance grammar without them
    odd_usage                 usage in a choice or in x_groq           read there (wire.transcode)
    daily_requests            rate headers count a day's requests      read as such (wire.rate_headers)

Rule: pure functions of the body, applied to the JSON that the upstream gets, of its own dialect. A body without the bytes
that a quirk is about is not parsed. Source: the provider's documentation or its recorded errors, per row in
docs/providers.md. When wrong: a removed field that the provider has learnt meanwhile has no effect; set `quirks: []`.
"""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from hashlib import sha256
from itertools import compress
from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import RawObject
from stayfast.core.types import Api
from stayfast.wire.compact_grammar import write_compact_grammar, write_guided_json


class Quirk(StrEnum):
    """One difference, by its row in the table above."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    NO_STREAM_OPTIONS = "no_stream_options"
    NO_PARALLEL_TOOL_CALLS = "no_parallel_tool_calls"
    NO_SEED = "no_seed"
    RANDOM_SEED = "random_seed"
    TOOL_ID_9 = "tool_id_9"
    JSON_WORD = "json_word"
    NO_DEVELOPER_ROLE = "no_developer_role"
    SYSTEM_FIRST = "system_first"
    NO_MESSAGE_NAMES = "no_message_names"
    VERTEX_ANTHROPIC = "vertex_anthropic"
    GUIDED_JSON = "guided_json"
    COMPACT_JSON = "compact_json"
    ODD_USAGE = "odd_usage"
    DAILY_REQUESTS = "daily_requests"


Change = Callable[[RawObject], None]
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_OBJECTS: Final = msgspec.json.Decoder(list[RawObject])
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_TOOL_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_JSON_HINT: Final = {"role": "system", "content": "Answer in JSON."}
_SYSTEM_ROLES: Final = (b'"system"', b'"developer"')
VERTEX_VERSION: Final = "vertex-2023-10-16"  # of the messages API, in anthropic 2.11's client for Vertex AI


def shorten_tool_id(tool_id: str) -> str:
    """An id of nine letters and digits, the same for the same id; such an id itself is returned unchanged."""
    if _TOOL_ID.fullmatch(tool_id):
        return tool_id
    number, letters = int.from_bytes(sha256(tool_id.encode()).digest()[:8]), ""
    for _ in range(9):
        number, at = divmod(number, len(_LETTERS))
        letters += _LETTERS[at]
    return letters


def _rename(old: str, new: str, *, wins: bool) -> Change:
    """wins: over a value that already has the new name."""
    def rename(fields: RawObject) -> None:
        value = fields.pop(old, None)
        if value is not None and bytes(value) != b"null" and (wins or new not in fields):
            fields[new] = value
    return rename


def _remove(name: str) -> Change:
    def remove(fields: RawObject) -> None:
        fields.pop(name, None)
    return remove


def _with_messages(change: Callable[[list[RawObject]], list[Any]]) -> Change:
    def change_messages(fields: RawObject) -> None:
        if "messages" in fields:
            fields["messages"] = Raw(_ENCODER.encode(change(_OBJECTS.decode(fields["messages"]))))
    return change_messages


def _shorten_ids(messages: list[RawObject]) -> list[RawObject]:
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = _shortened(message["tool_call_id"])
        if bytes(message.get("tool_calls", b"")).startswith(b"["):
            calls = _OBJECTS.decode(message["tool_calls"])
            for call in calls:
                if "id" in call:
                    call["id"] = _shortened(call["id"])
            message["tool_calls"] = Raw(_ENCODER.encode(calls))
    return messages


def _shortened(tool_id: Raw) -> Raw:
    text = _ANY.decode(tool_id)
    return Raw(_ENCODER.encode(shorten_tool_id(text))) if isinstance(text, str) else tool_id


def _rename_developer(messages: list[RawObject]) -> list[RawObject]:
    for message in messages:
        if bytes(message.get("role", b"")) == b'"developer"':
            message["role"] = Raw(b'"system"')
    return messages


def _remove_names(messages: list[RawObject]) -> list[RawObject]:
    for message in messages:
        message.pop("name", None)
    return messages


def _join_system(messages: list[RawObject]) -> list[Any]:
    """One system message at the beginning, with the texts of all; of parts, their texts."""
    are_system = [bytes(message.get("role", b"")) in _SYSTEM_ROLES for message in messages]
    if not any(are_system) or (are_system[0] and are_system.count(True) == 1):
        return messages
    system = compress(messages, are_system)
    texts = [text for message in system if (text := _text_of(_ANY.decode(message.get("content", b"null"))))]
    rest = [message for message, is_system in zip(messages, are_system, strict=True) if not is_system]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _name_json(fields: RawObject) -> None:
    form = _ANY.decode(fields.get("response_format", b"null"))
    if isinstance(form, dict) and form.get("type") == "json_object" and b"json" not in bytes(
            fields.get("messages", b"")).lower():
        _with_messages(lambda messages: [_JSON_HINT, *messages])(fields)


def _address_by_path(fields: RawObject) -> None:
    fields.pop("model", None)
    fields.setdefault("anthropic_version", Raw(_ENCODER.encode(VERTEX_VERSION)))


# In order: names of system messages change before they are joined. With the bytes without which nothing would change.
_CHANGES: Final[tuple[tuple[Quirk, bytes, Change], ...]] = (
    (Quirk.MAX_TOKENS, b'"max_completion_tokens"', _rename("max_completion_tokens", "max_tokens", wins=True)),
    (Quirk.MAX_COMPLETION_TOKENS, b'"max_tokens"', _rename("max_tokens", "max_completion_tokens", wins=False)),
    (Quirk.NO_STREAM_OPTIONS, b'"stream_options"', _remove("stream_options")),
    (Quirk.NO_PARALLEL_TOOL_CALLS, b'"parallel_tool_calls"', _remove("parallel_tool_calls")),
    (Quirk.NO_SEED, b'"seed"', _remove("seed")),
    (Quirk.RANDOM_SEED, b'"seed"', _rename("seed", "random_seed", wins=False)),
    (Quirk.TOOL_ID_9, b'"tool_call', _with_messages(_shorten_ids)),
    (Quirk.JSON_WORD, b'"json_object"', _name_json),
    (Quirk.GUIDED_JSON, b'"response_format"', write_guided_json),
    (Quirk.COMPACT_JSON, b'"response_format"', write_compact_grammar),
    (Quirk.NO_DEVELOPER_ROLE, b'"developer"', _with_messages(_rename_developer)),
    (Quirk.SYSTEM_FIRST, b'"role"', _with_messages(_join_system)),
    (Quirk.NO_MESSAGE_NAMES, b'"name"', _with_messages(_remove_names)),
    (Quirk.VERTEX_ANTHROPIC, b"{", _address_by_path),
)
_OF_MESSAGES: Final = frozenset({Quirk.VERTEX_ANTHROPIC})
_OPENAI_APIS: Final = (Api.CHAT, Api.COMPLETIONS)


class BodyQuirks:
    """The changes that the requests of one upstream need, and whether its usage is elsewhere. Immutable."""

    def __init__(self, quirks: Iterable[Quirk]) -> None:
        chosen = frozenset(quirks)
        self._of_chat = [(needle, change) for quirk, needle, change in _CHANGES if quirk in chosen - _OF_MESSAGES]
        self._of_messages = [(needle, change) for quirk, needle, change in _CHANGES if quirk in chosen & _OF_MESSAGES]
        self.has_odd_usage = Quirk.ODD_USAGE in chosen

    @property
    def are_none(self) -> bool:
        return not (self._of_chat or self._of_messages or self.has_odd_usage)

    def apply(self, body: bytes, spoken: Api) -> bytes:
        """The body for the upstream, in the dialect that it speaks. The body is valid JSON, of known types."""
        changes = self._of_messages if spoken is Api.MESSAGES else self._of_chat if spoken in _OPENAI_APIS else []
        due = [change for needle, change in changes if needle in body]
        if not due:
            return body
        fields = _OBJECT.decode(body)
        for change in due:
            change(fields)
        return _ENCODER.encode(fields)

