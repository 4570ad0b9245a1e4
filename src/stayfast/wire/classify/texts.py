"""The texts of a request that a classifier or a guard reads, in every dialect.

The question is the text of the last user message, normalised as the cache normalises it (`wire.canonical`): so the semantic
cache and a classifier embed the same text, and its vector is computed once.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import Api, Request
from stayfast.wire.canonical import normalize_text

_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_CONVERSATIONS: Final = frozenset((Api.CHAT, Api.MESSAGES, Api.RESPONSES))
_NOT_OF_USERS: Final = frozenset(("assistant", "system", "developer"))
_OUTPUTS: Final = frozenset(("function_call_output", "custom_tool_call_output"))


class RequestTexts(Struct, frozen=True):
    """question: empty if the conversation does not end with a text of the user. outside: what users and tools wrote, newest
    first; the texts of the operator (system) and of the model are not in it.
    """

    question: str = ""
    outside: tuple[str, ...] = ()


def read_request_texts(request: Request) -> RequestTexts:
    """The texts of a conversation or a completion. Empty for other requests, and for a form that only the upstream reads."""
    try:
        fields = _OBJECT.decode(request.body)
        if request.api in _CONVERSATIONS:
            return _read_turns(fields.get("input") if request.api is Api.RESPONSES else fields.get("messages"))
        if request.api is Api.COMPLETIONS:
            prompt = fields.get("prompt")
            texts = [prompt] if isinstance(prompt, str) else [text for text in prompt or () if isinstance(text, str)]
            return RequestTexts(normalize_text(texts[0]) if len(texts) == 1 else "", tuple(texts))
    except (ValueError, TypeError, AttributeError):  # a form that only the upstream reads
        return RequestTexts()
    return RequestTexts()


def _read_turns(turns: Any) -> RequestTexts:
    if isinstance(turns, str):
        return RequestTexts(normalize_text(turns), (turns,))
    if not isinstance(turns, list) or not turns:
        return RequestTexts()
    outside: list[str] = []
    for turn in reversed(turns):
        if turn.get("role") not in _NOT_OF_USERS and turn.get("type", "message") in ("message", *_OUTPUTS):
            outside.extend(_texts_of(turn.get("content")))
            outside.extend(_texts_of(turn.get("output")))
    last = turns[-1]
    question = ""
    if last.get("role") == "user":
        question = "\n".join(_texts_of(last.get("content"), has_results=False))
    return RequestTexts(normalize_text(question), tuple(outside))


def _texts_of(content: Any, *, has_results: bool = True) -> Iterator[str]:
    """The texts of a message's content: a text, or parts, of which tool results have parts of their own."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text")
            if isinstance(text, str):
                yield text
            elif has_results and part.get("type") == "tool_result":
                yield from _texts_of(part.get("content"))
