"""A gateway without free descriptors: which requests are served, which errors are returned, and the log."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stayfast.http.descriptors import are_exhausted, client_share, raise_descriptor_limit
from stayfast.server.auth import digest_key
from tests.ports import free_port
from tests.server.fakes import Client, eventually, get, post
from tests.server.workers_rig import ASK, Upstream

pytestmark = pytest.mark.sockets

LIMIT = 256
KEY = "sf-0123456789abcdef0123456789"
PROGRAM = f"""
import os, resource, sys, threading, time
from stayfast.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT} // 2, {LIMIT}))
def fill():
    taken = []
    while True:
        is_due, is_full = os.path.exists(sys.argv[2]), os.path.exists(sys.argv[2] + ".done")
        if is_due or is_full:  # also later: what others close is taken again
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                if is_due:
                    os.rename(sys.argv[2], sys.argv[2] + ".done")
        else:
            while taken:
                os.close(taken.pop())
        time.sleep(0.002)
threading.Thread(target=fill, daemon=True).start()
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""


class Gateway:
    """A gateway in a process of its own, with few descriptors."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self._log = log

    async def ask(self) -> tuple[int, dict[str, str], Any]:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            return await ask(client)
        finally:
            client.leave()

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log about one kind of event."""
        said = [json.loads(line) for line in self._log.read_bytes().splitlines() if line.startswith(b"{")]
        return [line for line in said if line["event"] == event]


async def ask(client: Client) -> tuple[int, dict[str, str], Any]:
    """One request; status, headers, body."""
    client.send(post(ASK, "/v1/chat/completions", f"authorization: Bearer {KEY}"))
    status, headers, body = await client.answer()
    return status, headers, json.loads(body)


@asynccontextmanager
async def gateway(folder: Path, upstream_port: int) -> AsyncIterator[Gateway]:
    """Run one until the end of the block. While the file `full` exists, its process has no descriptor left."""
    port, file, log, full = free_port(), folder / "s.yaml", folder / "log", folder / "full"
    file.write_text(f"server: {{port: {port}, keys: {{a: '{digest_key(KEY)}'}}}}\nroutes: {{m: [a]}}\n"
                    f'upstreams: {{a: {{kind: openai, base_url: "http://127.0.0.1:{upstream_port}/v1", probe: false}}}}\n')
    with log.open("wb") as out:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, str(file), str(full), stdout=out,
                                                     stderr=asyncio.subprocess.STDOUT)
        try:
            async with asyncio.timeout(30):
                while b"listens on" not in log.read_bytes():
                    assert child.returncode is None, log.read_text()
                    await asyncio.sleep(0.05)  # the log is a file, which has no event for a test
            yield Gateway(port, log)
        finally:
            full.unlink(missing_ok=True)
            child.terminate()
            await child.wait()


@asynccontextmanager
async def upstream() -> AsyncIterator[int]:
    """One that answers; its port."""
    server = await asyncio.start_server(Upstream().talk, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


def test_descriptors_silent_connections_do_not_block_requests(tmp_path: Path) -> None:
    """More silent connections than descriptors: requests are served all the same, and the log has a line, not hundreds."""

    async def main() -> None:
        async with upstream() as port, gateway(tmp_path, port) as its:
            crowd = [await its.connect() for _ in range(2 * LIMIT)]
            for _ in range(5):
                assert (await its.ask())[0] == 200
            await eventually(lambda: bool(its.lines("connections_closed")))
            lines = its.lines("connections_closed")
            assert 0 < len(lines) < 5
            assert "max_pending_connections" in lines[0]["detail"]
            [raised] = its.lines("descriptor_limit")
            assert (raised["before"], raised["after"], raised["clients"]) == (LIMIT // 2, LIMIT, client_share(LIMIT))
            assert its.lines("breaker") == []
            for client in crowd:
                client.reset()

    asyncio.run(main())


def test_descriptors_exhausted_is_not_an_upstream_failure(tmp_path: Path) -> None:
    """503 with a code of its own, one line that names descriptors and their limit; the breaker stays shut, and when there
    are descriptors again the same upstream answers at once.
    """

    async def main() -> None:
        done = tmp_path / "full.done"
        async with upstream() as port, gateway(tmp_path, port) as its:
            client = await its.connect()
            client.send(get("/livez"))
            assert (await client.answer())[0] == 200
            (tmp_path / "full").touch()
            await eventually(done.exists)
            for _ in range(20):
                status, headers, body = await ask(client)
                assert (status, body["error"]["code"], headers["retry-after"]) == (503, "descriptors_exhausted", "1")
                assert "x-stayfast-upstream" not in headers
                assert f"its limit is {LIMIT}" in body["error"]["message"]
            done.unlink()
            async with asyncio.timeout(10):
                while (await ask(client))[0] != 200:
                    await asyncio.sleep(0.01)  # until the other thread has closed them
            await eventually(lambda: bool(its.lines("descriptors_exhausted")))
            [line] = its.lines("descriptors_exhausted")
            assert (line["level"], line["limit"], line["upstream"]) == ("error", LIMIT, "a")
            assert "ulimit" in line["detail"]
            assert its.lines("breaker") == []
            client.reset()

    asyncio.run(main())


def test_descriptors_limit_is_raised_and_never_lowered() -> None:
    """To the hard one; a second time changes nothing."""
    before, after = raise_descriptor_limit()
    assert after >= before
    assert raise_descriptor_limit() == (after, after)
    assert not are_exhausted()
