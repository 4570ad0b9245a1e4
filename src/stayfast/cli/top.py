"""`stayfast top`: routes and upstreams of a running gateway, once a second.

Plain ANSI, without a library: one read-only screen needs the alternate screen, the cursor and three keys; textual would
bring five packages for it, rich three.
"""

import argparse
import queue
import select
import shutil
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, follow_events
from stayfast.cli.terminal import style_of_output
from stayfast.cli.top_screen import draw_screen
from stayfast.core.clock import SystemClock
from stayfast.core.snapshot import LiveFrame
from stayfast.settings import read_environment

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_POLL_S = 0.25
RETRY_S = 2.0
LIVE = "/admin/live"


def run(arguments: argparse.Namespace) -> int:
    """Show frames until q or an interrupt; one frame if the output is no terminal. Exit status 2: no gateway answers."""
    is_screen = sys.stdin.isatty() and sys.stdout.isatty() and read_environment().get("TERM") != "dumb"
    try:
        if arguments.once or arguments.json or not is_screen:
            return _print_one(arguments)
        return _show_screens(arguments)
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast top: {error}")
        return 2


def _print_one(arguments: argparse.Namespace) -> int:
    for data in follow_events(arguments, LIVE):
        if arguments.json:
            sys.stdout.write(f"{data}\n")
        else:
            frame = msgspec.json.decode(data, type=LiveFrame)
            sys.stdout.write("\n".join(draw_screen(frame, style_of_output(), url=arguments.url)) + "\n")
        return 0
    raise GatewayUnreachable(f"{arguments.url} closed the connection before the first frame")


class _Feed:
    """Frames of a gateway, read in a thread that ends with the process. After an error it connects again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.frames: queue.SimpleQueue[LiveFrame] = queue.SimpleQueue()
        self.error = ""
        self._arguments = arguments
        self._is_over = threading.Event()
        threading.Thread(target=self._read, name="frames", daemon=True).start()

    def _read(self) -> None:
        while not self._is_over.is_set():
            try:
                for data in follow_events(self._arguments, LIVE):
                    self.error = ""
                    self.frames.put(msgspec.json.decode(data, type=LiveFrame))
            except (GatewayUnreachable, AdminRequestFailed, msgspec.DecodeError) as error:
                self.error = str(error)
            self._is_over.wait(RETRY_S)

    def close(self) -> None:
        self._is_over.set()


def _show_screens(arguments: argparse.Namespace) -> int:
    first = next(iter(follow_events(arguments, LIVE)), None)  # raises at once where nothing listens
    if first is None:
        raise GatewayUnreachable(f"{arguments.url} closed the connection before the first frame")
    frame, clock, ink = msgspec.json.decode(first, type=LiveFrame), SystemClock(), style_of_output()
    feed, arrived_at, is_paused = _Feed(arguments), clock.now(), False
    try:
        with _alternate_screen():
            while True:
                while not feed.frames.empty():
                    newest, arrived_at = feed.frames.get(), clock.now()
                    frame = frame if is_paused else newest
                n_lines = shutil.get_terminal_size().lines - 1
                lines = draw_screen(frame, ink, url=arguments.url, age_s=clock.now() - arrived_at, n_lines=n_lines,
                                    is_paused=is_paused)
                sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines) + _CLEAR_REST)
                sys.stdout.flush()
                key = _read_key()
                if key == "q":
                    return 0
                is_paused ^= key == "p"
    except KeyboardInterrupt:
        return 0
    finally:
        feed.close()


def _read_key() -> str:
    """The pressed key; empty after `_POLL_S`."""
    ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
    return sys.stdin.read(1) if ready else ""


@contextmanager
def _alternate_screen() -> Iterator[None]:
    """Keys arrive at once and are not shown; the screen of before comes back at the end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
