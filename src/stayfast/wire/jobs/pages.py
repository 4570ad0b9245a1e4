"""Pages of lists: their parameters and their JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stayfast.core.errors import Rejected

Json = dict[str, Any]


def parse_limit(query: Mapping[str, str], default: int, maximum: int) -> int:
    """The page size. Raises Rejected unless it is from 1 to `maximum`."""
    value = query.get("limit")
    if value is None:
        return default
    limit = int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 0
    if not 1 <= limit <= maximum:
        raise Rejected(f"limit must be a whole number from 1 to {maximum}.", code="invalid_limit", param="limit")
    return limit


def parse_choice(query: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """A parameter with few values; None without it. Raises Rejected for another value."""
    value = query.get(name)
    if value is not None and value not in choices:
        raise Rejected(f"{name} must be one of {', '.join(choices)}.", code="invalid_value", param=name)
    return value


def encode_page(items: Sequence[Json], *, has_more: bool, is_anthropic: bool = False) -> bytes:
    """A page of objects with an `id`. `has_more`: there are others after it in the direction that was requested."""
    page: Json = {} if is_anthropic else {"object": "list"}
    page |= {"data": items, "has_more": has_more, "first_id": items[0]["id"] if items else None,
             "last_id": items[-1]["id"] if items else None}
    return msgspec.json.encode(page)
