"""A gateway in front of another one: what that gave instead of failing is no answer to keep, nor is its report."""

import asyncio

import pytest
import uvloop
from tests.flow.test_circles import WHOLE, ask, gateway

from tests.ports import free_port

pytestmark = pytest.mark.sockets

CHAT = b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(("lines", "n_calls"), [("", 1), ("x-stayfast-degraded: template\r\n", 2)])
def test_cache_does_not_store_a_degraded_answer_of_another_gateway(lines: str, n_calls: int) -> None:
    """The answer would be served for the whole TTL, after the other gateway has recovered."""
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while data := await reader.read(65_536):
            if data.endswith(b"}"):
                asked += 1
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{lines}content-length: {len(WHOLE)}"
                             "\r\n\r\n".encode() + WHOLE)
        writer.close()

    async def main() -> None:
        behind = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = free_port()
        async with behind, gateway(port, behind.sockets[0].getsockname()[1], "{upstreams: [a], cache: {mode: exact}}"):
            assert [(await ask(port, body=CHAT))[0] for _ in range(2)] == [200, 200]
        assert asked == n_calls

    uvloop.run(main())
