"""The items of a conversation in the Responses API: what a request adds, what an answer adds, how they are sent again."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

NEEDLESS: Final = ("id", "status")  # of an item that is sent again: the provider may not have stored it


def read_input_items(given: Raw | None) -> list[object]:
    """The `input` of a request as items; a text is one message of the user."""
    if given is None:
        return []
    value = msgspec.json.decode(given, type=str | list[Raw] | None)
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return list(value or ())


def reusable_items(output: Iterable[Any]) -> list[object]:
    """The items of an answer as input of the next request. Reasoning items are left out unless they are encrypted: only a
    provider that stored them can read them.
    """
    return [{name: value for name, value in item.items() if name not in NEEDLESS} for item in output
            if isinstance(item, dict) and (item.get("type") != "reasoning" or item.get("encrypted_content"))]
