"""A terminal of a given width, and what its user sees of a command in it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Seen:
    """`rewritten`: lines that were cleared away again; `lines`: those that stayed; `coloured`: these with their colours."""

    status: int
    rewritten: list[str]
    lines: list[str]
    coloured: str


def in_terminal(command: Sequence[str], *, columns: int = 80, environment: dict[str, str] | None = None,
                cwd: Path | None = None, seconds: float = 60.0) -> Seen:
    """Run a command whose input, output and errors are a terminal."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, cwd=cwd, close_fds=True,
                          env={**variables, **(environment or {})}) as process:
        os.close(there)
        text = _read(here, seconds).decode()
        os.close(here)
        status = process.wait(seconds)
    coloured = text.replace("\r\n", "\n")
    pieces = _COLOUR.sub("", coloured).split("\r\x1b[K")
    rewritten, lines = [], pieces[0].split("\n")
    for piece in pieces[1:]:
        rewritten.append(lines.pop())
        lines += piece.split("\n")
    return Seen(status, [line for line in rewritten if line], lines, coloured)


def _read(fd: int, seconds: float) -> bytes:
    found = b""
    while select.select([fd], [], [], seconds)[0]:
        try:
            read = os.read(fd, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not read:
            break
        found += read
    return found
