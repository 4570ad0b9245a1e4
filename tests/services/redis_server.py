"""A real Redis or Valkey on a port of loopback, which can be killed, frozen and started again."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_port
from tests.services.running import START_S, STOP_S, wait_until
from tests.services.tools import tool


class RedisServer:
    """One that keeps nothing on disk: after a restart it is empty."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._program = program
        self._errors = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with self._errors.open("a") as log:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
                stdout=log, stderr=log)
        wait_until(self._answers, START_S, self._errors)

    def kill(self) -> None:
        """As a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def freeze(self) -> None:
        """It accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def say(self, *words: bytes) -> bytes:
        """One command, and the first bytes of what it says to it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            return connection.recv(65_536)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._errors.read_text()
        with suppress(OSError):
            return self.say(b"PING") == b"+PONG\r\n"
        return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A running one. STAYFAST_TEST_REDIS names another program than redis-server, valkey-server for example."""
    name = os.environ.get("STAYFAST_TEST_REDIS") or ("redis-server" if shutil.which("redis-server") else "valkey-server")
    server = RedisServer(tool(name, "redis-server"), folder)
    server.start()
    try:
        yield server
    finally:
        server.thaw()
        server.kill()
