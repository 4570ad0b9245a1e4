"""The line between a parent and one worker process, on the worker's standard input.

Problem: a worker must never outlive its parent, must start from the very settings that the parent has checked (the file
may have changed since), and must say when it serves. Rule: a socket pair carries all three. Down come briefings, each a
frame (server/framing.py); up goes one line, `ready`. The end of the line is the end of the parent, even one that was
killed: the worker drains as for SIGTERM. A briefing after the first one is a reload: it raises SIGHUP.
"""

import os
import signal
import socket
import threading

from stayfast.workers.framing import receive_frame

READY = b"ready\n"


class Lifeline:
    """The worker's end. `briefing` is the latest one; a thread of its own waits for the next."""

    def __init__(self, line: socket.socket) -> None:
        """Wait for the first briefing. Raises EOFError when the parent is gone before it came."""
        self._line = line
        first = receive_frame(self._line)
        if first is None:
            raise EOFError("the parent process ended before it said what to serve")
        self.briefing = first

    @classmethod
    def on_standard_input(cls) -> "Lifeline":
        """The line that the parent put on file descriptor 0."""
        return cls(socket.socket(fileno=os.dup(0)))

    def watch(self, drain_s: float) -> None:
        """From now on raise SIGHUP for a new briefing and SIGTERM for the parent's end; `drain_s` later, exit at once."""
        threading.Thread(target=self._watch, args=(drain_s,), name="lifeline", daemon=True).start()

    def ready(self) -> None:
        """Tell the parent that this worker serves, and takes signals."""
        self._line.sendall(READY)

    def _watch(self, drain_s: float) -> None:
        while (briefing := receive_frame(self._line)) is not None:
            self.briefing = briefing
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(drain_s)
        os._exit(1)  # the drain hangs, and nobody is left to see it
