"""What commands show at a terminal, and how far a long one is: there one line that is rewritten in place, elsewhere a plain
line now and then.

The line of progress is our own and not tqdm's or rich's: what is shown is read from a run that has its own clock (the loop
of `bench --virtual` sleeps in virtual time) and its own end, so that of a library only the drawing would be used, for a
dependency of the core.
"""

import shutil
import sys
from collections.abc import Sequence
from math import ceil
from typing import TextIO

from stayfast.cli import fitting
from stayfast.lab.report.table import Ink
from stayfast.settings import environment

_CLEAR = "\r\x1b[K"
_LEAST_BAR, _MOST_BAR = 8, 24  # characters between the brackets


def ink_of_output() -> Ink:
    """Colours and the length of lines for standard output."""
    return Ink.choose(is_terminal=sys.stdout.isatty(), no_color=environment().get("NO_COLOR"),
                      columns=shutil.get_terminal_size().columns)


class ProgressLine:
    """The line on standard error. One task or thread at a time; `is_quiet`: shows nothing."""

    def __init__(self, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self.is_terminal = self._stream.isatty()
        self._is_quiet = is_quiet
        self._is_shown = False

    def show(self, parts: Sequence[str], share: float | None = None) -> None:
        """What there is to see, the most important first, and the share that is done, where that is known."""
        if self._is_quiet:
            return
        if not self.is_terminal:
            self._write(", ".join(filter(None, parts)) + "\n")
            return
        width = shutil.get_terminal_size().columns - 1  # a cursor in the last column would begin a second line
        self._write(_CLEAR + line_of(parts, share, width))
        self._is_shown = True

    def clear(self) -> None:
        """Leave an empty line for others to write on."""
        if self._is_shown:
            self._write(_CLEAR)
            self._is_shown = False

    def note(self, text: str) -> None:
        """A line that stays, above the one that is rewritten; it is shown where the progress is not, too."""
        self.clear()
        self._write(f"{fitting(text) if self.is_terminal else text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def line_of(parts: Sequence[str], share: float | None, width: int) -> str:
    """At most `width` characters: a bar, and the parts from the first on as long as there is room."""
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


def time_left(seconds: float) -> str:
    """Seconds as in "12 s", "5 min" or "1 h 20 min"."""
    if seconds < 99:
        return f"{ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
