"""Token counts where no tokenizer is at hand: an estimate, and always marked as one.

Formula: one token is about 4 bytes of English text or 3 of anything else; JSON punctuation of the envelope is not counted.
Source: OpenAI's rule of thumb (4 characters a token). When wrong: code, other scripts and long numbers, by up to 2x.
"""

from typing import Any, Final

import msgspec

from stayfast.core.types import Api, Request

BYTES_A_TOKEN = 4
TOKENS_A_MESSAGE = 4  # role and separators
TOKENS_AN_IMAGE = 1600  # Anthropic's figure for a 1.15 megapixel picture

PROMPT_FIELDS: Final = {  # of a body, where what is said stands
    Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.EMBEDDINGS: "input", Api.RESPONSES: "input",
    Api.MESSAGES: "messages", Api.COUNT_TOKENS: "messages",
}
_BESIDE: Final = ("system", "instructions", "tools", "functions")


def estimate_tokens(value: Any) -> int:
    """Tokens of all text inside a decoded JSON value."""
    if isinstance(value, str):
        return -(-len(value.encode()) // BYTES_A_TOKEN)
    if isinstance(value, list):
        return sum(estimate_tokens(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in ("image", "image_url", "input_image"):
            return TOKENS_AN_IMAGE
        return sum(estimate_tokens(item) for key, item in value.items() if key not in ("type", "role", "cache_control"))
    return 1 if isinstance(value, int | float) and not isinstance(value, bool) else 0


def input_tokens(request: Request) -> int:
    """About how many tokens an upstream would have to read, tools and instructions included."""
    body = msgspec.json.decode(request.body)
    said = body.get(PROMPT_FIELDS[request.api])
    n_messages = len(said) if isinstance(said, list) and said and isinstance(said[0], dict) else 0
    return estimate_tokens([said, *[body.get(name) for name in _BESIDE]]) + TOKENS_A_MESSAGE * n_messages


def count_tokens_answer(request: Request) -> bytes:
    """The body of an answer to /v1/messages/count_tokens, marked as an estimate."""
    body = msgspec.json.decode(request.body)
    messages = body.get("messages", [])
    n_tokens = estimate_tokens([messages, body.get("system"), body.get("tools")]) + TOKENS_A_MESSAGE * len(messages)
    return msgspec.json.encode({"input_tokens": n_tokens, "stayfast_estimated": True})
