"""A gateway of several workers in front of the test's upstream, and clients that record their worker."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ports import free_port

ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}).encode()
ASK = b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1}'


class Upstream:
    """Answers after `takes_s` with `status`; knows how many it has at a time."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.status = 200
        self.n = self.n_most = self.n_asked = self.n_talking = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.n_talking += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                self.n_asked += 1
                self.n += 1
                self.n_most = max(self.n_most, self.n)
                is_left = await self._hold(reader)
                self.n -= 1
                if is_left:
                    break
                body = ANSWER if self.status == 200 else b"{}"
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                             % (self.status, len(body), body))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway closes when it likes
        finally:
            self.n_talking -= 1
            writer.close()


    async def _hold(self, reader: asyncio.StreamReader) -> bool:
        """Wait for as long as an answer takes; whether the gateway hung up before."""
        try:
            async with asyncio.timeout(self.takes_s):
                await reader.read(1)
        except TimeoutError:
            return False
        return True


class Client:
    """One connection, and with it one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.worker = -1

    @classmethod
    async def open(cls, port: int) -> "Client":
        """A new one, at whichever worker."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.worker = int(str((await client.state())["worker"]))
        return client

    async def ask(self) -> int:
        """One request; its status. 0: the connection broke."""
        try:
            return (await self._exchange(b"POST /v1/chat/completions", ASK))[0]
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0

    async def state(self) -> dict[str, object]:
        """What its worker says of itself."""
        told: dict[str, object] = json.loads((await self._exchange(b"GET /debug/state", b""))[1])
        return told

    async def upstream(self) -> str:
        """How its worker sees the upstream."""
        return str((await self.state())["upstreams"])

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def _exchange(self, line: bytes, body: bytes) -> tuple[int, bytes]:
        self._writer.write(b"%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                           b"content-length: %d\r\n\r\n%s" % (line, len(body), body))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        n_bytes = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), await self._reader.readexactly(n_bytes)


class Gateway:
    """A parent and its workers."""

    def __init__(self, port: int, folder: Path, parent: subprocess.Popen[bytes], upstream: Upstream) -> None:
        self.port = port
        self.upstream = upstream
        self.opened: list[Client] = []
        self._folder = folder
        self._parent = parent

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text()

    def has_reloaded(self, n: int) -> bool:
        """Whether so many reloads are done, of all workers together."""
        return self.log().count('"reloaded"') == n

    def pid(self, worker: int) -> int:
        """The process of a worker, the newest."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return int([line for line in lines if line["event"] == "starting" and line["worker"] == worker][-1]["pid"])

    def reload(self, settings: str) -> None:
        """Other settings."""
        (self._folder / "stayfast.yaml").write_text(_settings(settings, self.upstream.port))
        self._parent.send_signal(signal.SIGHUP)

    async def clients(self, n_workers: int, n_each: int) -> list[list[Client]]:
        """So many at each worker."""
        found: list[list[Client]] = [[] for _ in range(n_workers)]
        while min(len(of) for of in found) < n_each:
            client = await Client.open(self.port)
            self.opened.append(client)
            if len(found[client.worker]) < n_each:
                found[client.worker].append(client)
        return found


def _settings(text: str, port: int) -> str:
    up = f'{{kind: openai, base_url: "http://127.0.0.1:{port}/v1", probe: false, max_connections: 1000'
    return text.replace("UP", up) + "server: {drain_grace_s: 0, drain_s: 1}\nlog: {requests: false}\n"


async def until(is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for it."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.01)


def _started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as out:
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(folder)})


@asynccontextmanager
async def running(folder: Path, settings: str, n_workers: int) -> AsyncIterator[Gateway]:
    """A gateway with workers on a free port, until the block ends. `UP` in its settings is the upstream but for its }."""
    port = free_port()
    upstream = Upstream()
    server = await asyncio.start_server(upstream.talk, "127.0.0.1", 0, backlog=1000)
    upstream.port = server.sockets[0].getsockname()[1]
    (folder / "stayfast.yaml").write_text(_settings(settings, upstream.port))
    command = [sys.executable, "-m", "stayfast", "serve", "--config", "stayfast.yaml", "--port", str(port), "--workers",
               str(n_workers)]
    parent = _started(command, folder)
    gateway = Gateway(port, folder, parent, upstream)
    try:
        await until(lambda: "listens on" in gateway.log() or parent.poll() is not None)
        yield gateway
    finally:
        parent.send_signal(signal.SIGTERM)
        ends_at = time.monotonic() + 20
        while parent.poll() is None and time.monotonic() < ends_at:
            await asyncio.sleep(0.05)
        server.close()
        for client in gateway.opened:
            client.close()
        await until(lambda: not upstream.n_talking)  # the gateway is gone, and its connections with it
        assert parent.poll() == 0, gateway.log()
