"""Log lines as text for a terminal: time, level, event, and a request's most important fields, cut to the terminal's width.

A text line holds no more than the JSON line. Foreign text (a model's name, a path, an upstream's message) is shown without
control characters.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from stayfast.core.units import format_seconds, make_printable

_COLOURS: Final = {"debug": "2", "info": "32", "warning": "33", "error": "1;31"}
_DEFAULT_COLUMNS: Final = 80
_STANDARD_FIELDS: Final = frozenset(("ts", "event", "level", "detail"))


class TextLines:
    """Renders log lines for the terminal at `fd`; 80 columns if it is not a terminal."""

    def __init__(self, fd: int, *, has_colour: bool) -> None:
        self._fd = fd
        self._has_colour = has_colour

    def encode(self, line: object) -> bytes:
        """Encode a struct or mapping as a line without its newline."""
        fields: Mapping[str, Any] = msgspec.to_builtins(line)
        text = _request(fields, self._columns()) if fields["event"] == "request" else _event(fields)
        return self._coloured(text, _level(fields)).encode(errors="backslashreplace")

    def _coloured(self, text: str, level: str) -> str:
        if not self._has_colour:
            return text
        time, name, rest = text.partition(f" {level:7} ")
        return f"\x1b[2m{time}\x1b[0m\x1b[{_COLOURS[level]}m{name}\x1b[0m{rest}"

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS


def _level(fields: Mapping[str, Any]) -> str:
    """The level of a line; a request without one is a warning for 5xx, else info."""
    level = fields.get("level") or ("warning" if fields.get("status", 0) >= 500 else "info")
    return str(level)


def _head(fields: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(fields.get("ts", 0.0), UTC).astimezone()
    return f"{at:%H:%M:%S} {_level(fields):7} "


def _event(fields: Mapping[str, Any]) -> str:
    """Event, fields, detail; never cut."""
    parts = [str(fields["event"]), *(f"{name}={_word(value)}" for name, value in fields.items()
                                    if name not in _STANDARD_FIELDS and value is not None)]
    if fields.get("detail"):
        parts.append(f"- {make_printable(str(fields['detail']))}")
    return _head(fields) + " ".join(parts)


def _request(fields: Mapping[str, Any], columns: int) -> str:
    """As many fields as fit, the most important first. Warnings are never cut."""
    line = f"{_head(fields)}{fields['status']} {_ms(fields['ms'])}"
    may_cut = _level(fields) == "info"
    for part in _parts(fields):
        if may_cut and len(line) + 1 + len(part) > columns:
            break
        line += f" {part}"
    return line


def _parts(fields: Mapping[str, Any]) -> list[str]:
    found = []
    if "error" in fields:
        found.append(f"{_word(fields['error'])}{' in ' + fields['over_stage'] if 'over_stage' in fields else ''}")
    if "path" in fields or "route" in fields:
        found.append(_word(fields.get("route", fields.get("path"))))
    elif "model" in fields:
        found.append(f"model {_word(fields['model'])}")
    if "upstream" in fields:
        found.append(f"by {_word(fields['upstream'])}")
    if fields.get("attempts", 0) > 1:
        found.append(f"{fields['attempts']} attempts")
    if "ttft_ms" in fields:
        found.append(f"ttft {_ms(fields['ttft_ms'])}")
    found += [f"{name} {_word(fields[name])}" for name in ("cache", "degraded", "shed", "tenant") if name in fields]
    if "input_tokens" in fields or "output_tokens" in fields:
        found.append(f"tokens {fields.get('input_tokens', '-')}+{fields.get('output_tokens', '-')}")
    found.append(_word(fields["request_id"]))
    return found


def _ms(value: float) -> str:
    return format_seconds(value / 1e3).replace(" ", "")


def _word(value: object) -> str:
    """A printable value; in quotes if it has spaces."""
    text = make_printable(str(value))
    return f'"{text}"' if " " in text else text
