"""Token counts where no tokenizer is at hand: an estimate, and always marked as one.

Formula: one token is about 4 bytes; JSON punctuation of the envelope is not counted. A bound (`input_tokens`) must not be
passed under by what vocabularies know worst, so it counts on the high side:

    letters and blanks / 4,     punctuation / 2,     other scripts: bytes of UTF-8 / 2,     a token a byte at most
    digits 1 each, and 3/4 for each number: what follows it is no part of another token

Source: OpenAI's rule of thumb (4 characters a token); some vocabularies have a token for each digit, others for up to three;
a Han character is 3 bytes and one to two tokens. When wrong: English comes out a tenth to a fifth too long, long numbers up
to three times; scripts that a vocabulary has no words of have up to a token a byte.
"""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Api, Request

_LETTERS: Final = bytes(range(33)) + bytes(range(65, 91)) + bytes(range(97, 123))  # and blanks
_DIGITS: Final = b"0123456789"
_WHERE_DIGITS: Final = bytes(ord("0") if byte in _DIGITS else ord(" ") for byte in range(256))
TOKENS_A_MESSAGE = 4  # role and separators
TOKENS_AN_IMAGE = 1600  # Anthropic's figure for a 1.15 megapixel picture
_PICTURES: Final = ("image", "image_url", "input_image")
_UNREAD: Final = ("type", "role", "cache_control")

PROMPT_FIELDS: Final = {  # of a body, where what is said stands
    Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.EMBEDDINGS: "input", Api.RESPONSES: "input",
    Api.MESSAGES: "messages", Api.COUNT_TOKENS: "messages",
}
_BESIDE: Final = ("system", "instructions")
_DECLARED: Final = ("tools", "functions")  # their names and brackets are read, too


def estimate_tokens(value: Any) -> int:
    """Tokens of all text inside a decoded JSON value."""
    return round(_sum(value, lambda text: ceil(len(text) / BYTES_A_TOKEN)))


def text_tokens(text: bytes) -> float:
    """How many tokens a UTF-8 text may come to, on the high side; see above."""
    rest = text.translate(None, _LETTERS)
    if not rest:
        return len(text) / BYTES_A_TOKEN
    marks = rest.translate(None, _DIGITS)
    n_letters, n_digits = len(text) - len(rest), len(rest) - len(marks)
    n_tokens = n_letters / BYTES_A_TOKEN + n_digits + len(marks) / 2
    if n_digits:
        n_tokens += text.translate(_WHERE_DIGITS).count(b"0 ") * 0.75
    return min(n_tokens, len(text))


def may_be_over(body: bytes, most: int) -> bool:
    """Whether a body could hold more than so many tokens. No byte is more than a token, but a picture may be a few bytes."""
    return len(body) > most or b"image" in body


def input_tokens(request: Request) -> int:
    """How many tokens an upstream may have to read, on the high side, tools and instructions included."""
    body = msgspec.json.decode(request.body)
    said = body.get(PROMPT_FIELDS[request.api])
    n_messages = len(said) if isinstance(said, list) and said and isinstance(said[0], dict) else 0
    declared = sum(text_tokens(msgspec.json.encode(body[name])) for name in _DECLARED if body.get(name))
    return ceil(_sum([said, *[body.get(name) for name in _BESIDE]], text_tokens) + declared) + TOKENS_A_MESSAGE * n_messages


def _sum(value: Any, tokens_of: Callable[[bytes], float]) -> float:
    """Over all text inside a decoded JSON value, by its UTF-8."""
    if isinstance(value, str):
        return tokens_of(value.encode())
    if isinstance(value, list):
        return sum(_sum(item, tokens_of) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _PICTURES:
            return TOKENS_AN_IMAGE
        return sum(_sum(item, tokens_of) for key, item in value.items() if key not in _UNREAD)
    return 1 if isinstance(value, int | float) and not isinstance(value, bool) else 0


def count_tokens_answer(request: Request) -> bytes:
    """The body of an answer to /v1/messages/count_tokens, marked as an estimate."""
    body = msgspec.json.decode(request.body)
    messages = body.get("messages", [])
    n_tokens = estimate_tokens([messages, body.get("system"), body.get("tools")]) + TOKENS_A_MESSAGE * len(messages)
    return msgspec.json.encode({"input_tokens": n_tokens, "stayfast_estimated": True})
