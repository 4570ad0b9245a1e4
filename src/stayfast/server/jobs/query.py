"""Parameters of the queries of the jobs' and the keys' endpoints."""

from collections.abc import Mapping

from stayfast.core.errors import Rejected

MAX_NAME_CHARS = 64  # of a name in a message


def check_parameters(query: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raises Rejected for a parameter that is not known."""
    for name in query:
        if name not in known:
            shown = name[:MAX_NAME_CHARS]
            raise Rejected(f"Unknown parameter {shown}. Supported: {', '.join(known)}.", param=shown)


def parse_whole(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """A whole number from 1 to `maximum`, which has at most 6 digits. Raises Rejected."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= maximum):
        raise Rejected(f"{name} must be a whole number from 1 to {maximum}.", param=name)
    return int(text)
