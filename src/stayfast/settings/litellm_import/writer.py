"""A settings file as text, with a comment at each piece that names its lines in the source."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

Scalar = str | float | int | bool
Inline = Scalar | Sequence[str] | Sequence["Mapping[str, Inline]"] | Mapping[str, "Inline"]
_PLAIN = re.compile(r"[A-Za-z_][\w./@-]*")  # also of a key: no indicator of YAML, no colon
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_WIDE = 10**9


@dataclass(slots=True)
class OutSection:
    """A mapping of the file that is being written. `notes`: comment lines above it. `is_short`: all on one line.
    """

    entries: "dict[str, OutSection | OutValue]" = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_short: bool = False

    def section(self, *names: str) -> "OutSection":
        """The section at a path, made if missing."""
        found = self
        for name in names:
            made = found.entries.get(name)
            if not isinstance(made, OutSection):
                made = found.entries[name] = OutSection()
            found = made
        return found

    def set(self, name: str, value: "Inline", source: str = "") -> None:
        """Set a value. source: file and line that it comes from."""
        self.entries[name] = OutValue(value, source)

    def note(self, text: str) -> None:
        """Add a comment line; control characters are left out."""
        line = _printable(text)
        if line not in self.notes:
            self.notes.append(line)


@dataclass(frozen=True, slots=True)
class OutValue:
    """A scalar, a list, or a small mapping, on one line."""

    value: Inline
    source: str


def write_file(head: Iterable[str], root: OutSection) -> str:
    """The text of the file. head: comment lines at its top."""
    lines = [f"# {_printable(line)}" if line else "#" for line in head]
    for name, section in root.entries.items():
        lines.append("")
        _write(name, section, "", lines)
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _write(name: str, piece: OutSection | OutValue, indent: str, lines: list[str]) -> None:
    if isinstance(piece, OutSection) and piece.is_short:
        piece = OutValue(_as_inline(piece), "; ".join(piece.notes))
    if isinstance(piece, OutValue):
        comment = f"  # {_printable(piece.source)}" if piece.source else ""
        lines.append(f"{indent}{write_scalar(name)}: {_inline(piece.value)}{comment}")
        return
    lines += [f"{indent}# {note}" for note in piece.notes]
    lines.append(f"{indent}{write_scalar(name)}:{'' if piece.entries else ' {}'}")
    for key, value in piece.entries.items():
        _write(key, value, indent + "  ", lines)


def _as_inline(section: OutSection) -> Mapping[str, Inline]:
    return {name: _as_inline(piece) if isinstance(piece, OutSection) else piece.value
            for name, piece in section.entries.items()}


def _inline(value: Inline) -> str:
    if isinstance(value, str | float | int):
        return write_scalar(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{write_scalar(name)}: {_inline(item)}' for name, item in value.items())}}}"
    return f"[{', '.join(_inline(item) for item in value)}]"


def write_scalar(value: Scalar) -> str:
    """One value in YAML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return f"{value:.15g}"
    if _PLAIN.fullmatch(value) and value.isascii() and value.lower() not in _WORDS:
        return value
    text: str = yaml.safe_dump(value, default_style='"', width=_WIDE, allow_unicode=True)
    return text.strip()
