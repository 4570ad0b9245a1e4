"""A Redis server of a proof, on a free port of loopback. It can be frozen, killed and started again, empty."""

import asyncio
import shutil
import signal
import socket
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from stayfast.lab.harness.claim import SetUpFailed

PROGRAMS: Final = ("redis-server", "valkey-server")
_START_S: Final = 10.0
_REPLY_S: Final = 2.0


class RedisProcess:
    """`async with RedisProcess() as redis`. It keeps nothing on disk."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.kill()

    async def start(self) -> None:
        """Returns when it answers. Raises SetUpFailed."""
        program = next((found for found in map(shutil.which, PROGRAMS) if found), None)
        if program is None:
            raise SetUpFailed("this proof starts a Redis server, and there is neither redis-server nor valkey-server: "
                              "apt-get install redis-server")
        self._process = await asyncio.create_subprocess_exec(
            program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while True:
                    with suppress(OSError):
                        if await self.read("PING") == "PONG":
                            return
                    await asyncio.sleep(0.05)
        raise SetUpFailed(f"{program} did not answer within {_START_S:g} s")

    async def kill(self) -> None:
        """As a crash does."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def freeze(self) -> None:
        """Stop the process (SIGSTOP): the kernel still accepts connections, and no command is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a stopped process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def read(self, *words: str) -> str:
        """The reply to a command: a line, or a bulk string. Raises OSError."""
        async with asyncio.timeout(_REPLY_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(b"".join((b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word.encode())
                                                                 for word in words))))
                line = (await reader.readline()).decode().strip()
                if line.startswith("$"):
                    return (await reader.readexactly(int(line[1:]))).decode()
                return line[1:]
            finally:
                writer.close()
