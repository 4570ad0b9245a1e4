"""Terminal output of commands: colours, and a progress line that is rewritten in place, or printed now and then in a log.

The progress line is not tqdm's or rich's: `bench --virtual` sleeps in virtual time and ends a run by its own rules, so only
the drawing of a library would be used, for one more dependency.
"""

import shutil
import sys
from collections.abc import Sequence
from math import ceil
from typing import TextIO

from stayfast.cli import wrap_to_terminal
from stayfast.lab.report.table import TerminalStyle
from stayfast.settings import read_environment

_CLEAR = "\r\x1b[K"
_LEAST_BAR, _MOST_BAR = 8, 24  # characters between the brackets


def style_of_output() -> TerminalStyle:
    """The colours and line length of standard output."""
    return TerminalStyle.choose(is_terminal=sys.stdout.isatty(), no_color=read_environment().get("NO_COLOR"),
                      columns=shutil.get_terminal_size().columns)


class ProgressLine:
    """A line on standard error, for one task or thread at a time. `is_quiet`: no progress."""

    def __init__(self, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self.is_terminal = self._stream.isatty()
        self._is_quiet = is_quiet
        self._is_shown = False

    def show(self, parts: Sequence[str], share: float | None = None) -> None:
        """Show phrases, the most important first, and a bar if `share` (0 to 1) is known."""
        if self._is_quiet:
            return
        if not self.is_terminal:
            self._write(", ".join(filter(None, parts)) + "\n")
            return
        width = shutil.get_terminal_size().columns - 1  # the last column would wrap
        self._write(_CLEAR + format_line(parts, share, width))
        self._is_shown = True

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._is_shown:
            self._write(_CLEAR)
            self._is_shown = False

    def note(self, text: str) -> None:
        """Print a permanent line, even if `is_quiet`."""
        self.clear()
        self._write(f"{wrap_to_terminal(text) if self.is_terminal else text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def format_line(parts: Sequence[str], share: float | None, width: int) -> str:
    """At most `width` characters: a bar, then as many parts as fit."""
    head = ""
    if share is not None:
        share = min(1.0, max(0.0, share))
        room = min(_MOST_BAR, max(_LEAST_BAR, width // 5))
        n_done = int(room * share)
        head = f"[{'#' * n_done}{'-' * (room - n_done)}] {int(100 * share):3d} %  "
    line = head
    for part in filter(None, parts):
        joined = line + part if line == head else f"{line}, {part}"
        if len(joined) > width and line != head:
            break
        line = joined
    return line[:width]


def format_time_left(seconds: float) -> str:
    """12 -> "12 s", 300 -> "5 min", 4800 -> "1 h 20 min"."""
    if seconds < 99:
        return f"{ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
