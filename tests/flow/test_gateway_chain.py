"""A gateway in front of another one, whose degraded answers are not stored."""

import asyncio

import pytest
import uvloop

from tests.flow.chain_rig import WHOLE, fetch, gateway_to
from tests.flow.socket_rig import listening
from tests.ports import free_port

pytestmark = pytest.mark.sockets

CHAT = b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(("lines", "n_calls"), [("", 1), ("x-stayfast-degraded: template\r\n", 2)])
def test_cache_does_not_store_a_degraded_answer_of_another_gateway(lines: str, n_calls: int) -> None:
    """The answer would be served for the whole TTL, after the other gateway has recovered."""
    n_received = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_received
        while data := await reader.read(65_536):
            if data.endswith(b"}"):
                n_received += 1
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{lines}content-length: {len(WHOLE)}"
                             "\r\n\r\n".encode() + WHOLE)
        writer.close()

    async def main() -> None:
        async with listening(talk) as upstream_port:
            port = free_port()
            async with gateway_to(port, upstream_port, "{upstreams: [a], cache: {mode: exact}}"):
                assert [(await fetch(port, body=CHAT))[0] for _ in range(2)] == [200, 200]
        assert n_received == n_calls

    uvloop.run(main())
