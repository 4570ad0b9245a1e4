"""The `Prefer` header (RFC 7240): whether a client accepts 202 with the address of its answer instead of the answer.

    Prefer: respond-async, wait=10

Preferences that are unknown or malformed are ignored (RFC 7240, 2), also in the forms of structured fields (RFC 8941):
`respond-async=?1`, `wait="10"`, parameters after semicolons. Of a repeated preference the first counts.
"""

import re
from typing import Final

import msgspec

MAX_PREFER_WAIT_S: Final = 600
_PREFERENCE: Final = re.compile(r'((?:[^,"]|"(?:[^"\\]|\\.)*")*)(?:,|$)')
_WAIT: Final = re.compile(r'"?([0-9]{1,9})"?')
_YES: Final = ("", "?1", '""', "true")


class AsyncPreference(msgspec.Struct, frozen=True):
    """wait_s: for so long the client would rather have the answer itself, at most MAX_PREFER_WAIT_S."""

    wait_s: int = 0

    @property
    def applied(self) -> str:
        """The value of `Preference-Applied`."""
        return f"respond-async, wait={self.wait_s}" if self.wait_s else "respond-async"


def parse_prefer(value: str) -> AsyncPreference | None:
    """None: the client does not accept an answer later."""
    found: dict[str, str] = {}
    for match in _PREFERENCE.finditer(value):
        name, _, argument = match[1].partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), argument.strip())
    if found.get("respond-async", "no").lower() not in _YES:
        return None
    wait = _WAIT.fullmatch(found.get("wait", ""))
    return AsyncPreference(min(int(wait[1]), MAX_PREFER_WAIT_S) if wait is not None else 0)
