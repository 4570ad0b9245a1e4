"""The last words of the engine's process, without those of its users.

llama.cpp quotes requests in some of its messages (a grammar that does not parse, a schema it does not know), at every
verbosity. So everything is kept while the model loads, when there are no requests, and only the messages of a native
crash from then on.
"""

import asyncio
import re
from collections import deque

_N_LINES = 20
_MAX_LINE_BYTES = 400
_READ_BYTES = 65_536

_CRASH = re.compile(r"\S+:\d+: GGML_ASSERT\(.*\) failed|terminate called after throwing an instance of '[\w:]+'")
_ERROR = re.compile(r"[\d.]+ E +")


class LastWords:
    """A ring of lines. One task at a time."""

    __slots__ = ("_is_serving", "_lines", "_partial")

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_LINES)
        self._partial = b""
        self._is_serving = False

    def begin_serving(self) -> None:
        """From here on requests may be quoted: forget what was said, keep only the messages of a crash."""
        self._lines.clear()
        self._partial = b""
        self._is_serving = True

    def feed(self, data: bytes) -> None:
        """Take bytes of stderr, cut anywhere."""
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[:_MAX_LINE_BYTES]
        for line in lines:
            text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").strip()
            if text and (not self._is_serving or _CRASH.fullmatch(text)):
                self._lines.append(text)

    async def follow(self, reader: asyncio.StreamReader) -> None:
        """Feed until EOF."""
        while data := await reader.read(_READ_BYTES):
            self.feed(data)

    def lines(self) -> tuple[str, ...]:
        """What was kept, oldest first."""
        return tuple(self._lines)

    def cause(self) -> str | None:
        """The likeliest cause in one line: llama.cpp's first error (the others are echoes), else the last line."""
        for line in self._lines:
            if match := _ERROR.match(line):
                return line[match.end():]
        return self._lines[-1] if self._lines else None
