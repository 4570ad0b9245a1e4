"""A gateway in a process of its own that measures how long its loop stands still, and an upstream of large answers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stayfast.core.clock import SystemClock
from tests.ports import free_port

PROGRAM = """
import asyncio, signal, sys
from stayfast.cli import main
from stayfast.compose import process
worst_s = 0.0
def tell(*_):
    global worst_s
    with open(sys.argv[2], "a") as out:
        out.write(f"{worst_s}\\n")
    worst_s = 0.0
async def watch(clock, sink):
    global worst_s
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    while True:
        due_at = clock.now() + 0.001
        await asyncio.sleep(0.001)
        worst_s = max(worst_s, clock.now() - due_at)
process.watch_loop = watch
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""
UPSTREAM = """
import asyncio, sys
async def talk(reader, writer):
    try:
        await answer(reader, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()  # the gateway has had enough
async def answer(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0]))
        with open(sys.argv[2], "rb") as file:
            body = file.read()
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body))
        writer.write(body)
        await writer.drain()
async def main():
    async with await asyncio.start_server(talk, "127.0.0.1", int(sys.argv[1])) as server:
        print("ready", flush=True)
        await server.serve_forever()
asyncio.run(main())
"""


class Gateway:
    """One that runs."""

    def __init__(self, port: int, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.port = port
        self._process = process
        self._lags = folder / "lags"

    async def lag_s(self) -> float:
        """The longest that its loop stood still since this was called last."""
        before = self._lags.read_text() if self._lags.exists() else ""
        self._process.send_signal(10)  # SIGUSR1
        clock = SystemClock()
        until = clock.now() + 20
        while (now := self._lags.read_text() if self._lags.exists() else "") == before:
            assert clock.now() < until, "the gateway does not answer its signal"
            await asyncio.sleep(0.01)  # a file has no event for a test
        return float(now.splitlines()[-1])

    async def ask(self, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; what comes back is read by whoever wants it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        writer.write(b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                     % (path.encode(), len(body), body))
        return reader, writer

    async def status_and_size(self, path: str, body: bytes) -> tuple[int, int, bytes]:
        """Status, bytes of the body, and its last 300."""
        reader, writer = await self.ask(path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        n, last = 0, b""
        while data := await reader.read(2**20):
            n += len(data)
            last = (last + data)[-300:]
        writer.close()
        return int(head.split(b" ")[1]), n, last

    def rss_bytes(self) -> int:
        """Memory that it has now."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


@asynccontextmanager
async def gateway(folder: Path, answer: bytes, server: str = "") -> AsyncIterator[Gateway]:
    """A gateway whose one upstream gives this answer to everything. `server`: more of that section."""
    port, upstream_port = free_port(), free_port()
    file, body, log = folder / "s.yaml", folder / "answer", folder / "log"
    body.write_bytes(answer)
    file.write_text(f"server: {{port: {port}{server}}}\nroutes: {{m: [a]}}\ndefaults: {{timeouts: {{total_s: 60}}}}\n"
                    f'upstreams: {{a: {{kind: openai, base_url: "http://127.0.0.1:{upstream_port}/v1", probe: false}}}}\n')
    upstream = await asyncio.create_subprocess_exec(sys.executable, "-c", UPSTREAM, str(upstream_port), str(body),
                                                    stdout=asyncio.subprocess.PIPE)
    with log.open("wb") as out:
        its = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, str(file), str(folder / "lags"),
                                                   stdout=out, stderr=asyncio.subprocess.STDOUT)
    try:
        assert upstream.stdout is not None
        assert await upstream.stdout.readline() == b"ready\n"
        async with asyncio.timeout(30):
            while b"listens on" not in log.read_bytes():
                assert its.returncode is None, log.read_text()
                await asyncio.sleep(0.05)  # as above
        yield Gateway(port, its, folder)
    finally:
        for process in (its, upstream):
            if process.returncode is None:
                process.kill()
                await process.wait()
