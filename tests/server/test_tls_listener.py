"""Limits of TLS handshakes that do not end."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from stayfast.http.server.waiting_connections import GRACE_S
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig
from stayfast.server.lifecycle import GatewayServer
from stayfast.testing import RecordingSink
from tests.server.authority import Authority
from tests.server.fakes import Client, FakeBackend, get, host

HALF = b"\x16\x03\x01"  # the begin of a TLS record


async def start(config: ServerConfig, errors: list[BaseException]) -> GatewayServer:
    server = GatewayServer(ActiveSystem(FakeBackend(config)), host(RecordingSink(), errors))
    await server.listen()
    return server


async def is_served(server: GatewayServer, tls: ssl.SSLContext) -> bool:
    client = Client(*await asyncio.open_connection(*server.addresses()[0], ssl=tls))
    client.send(get("/livez"))
    status = (await client.answer())[0]
    client.reset()
    return status == 200


class HalfOpen:
    """A client that begins a handshake and stops."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        writer.write(HALF)

    async def wait_closed(self) -> None:
        with suppress(ConnectionError):  # with or without a reset
            async with asyncio.timeout(10):
                assert await self._reader.read() == b""
        self.leave()

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof() and self._reader.exception() is None

    def leave(self) -> None:
        self._writer.transport.abort()


async def begin_handshake(server: GatewayServer) -> HalfOpen:
    return HalfOpen(*await asyncio.open_connection(*server.addresses()[0]))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_tls_handshake_that_stops_ends_after_head_timeout(run: Callable[..., None], tmp_path: Path) -> None:
    """The loop's own bound is 60 s."""
    authority, errors = Authority(tmp_path), list[BaseException]()

    async def main() -> None:
        server = await start(ServerConfig(port=0, tls=authority.write_certificate(), head_timeout_s=0.3), errors)
        half = await begin_handshake(server)
        assert await is_served(server, authority.client())
        await half.wait_closed()
        server.close()

    run(main())
    assert errors == []


def test_tls_handshakes_that_stop_are_limited_as_silent_connections(tmp_path: Path) -> None:
    authority, errors = Authority(tmp_path), list[BaseException]()

    async def main() -> None:
        config = ServerConfig(port=0, tls=authority.write_certificate(), max_pending_connections=3, head_timeout_s=60)
        server = await start(config, errors)
        clients = [await begin_handshake(server) for _ in range(6)]
        await asyncio.sleep(GRACE_S + 0.2)  # younger ones are never closed
        assert await is_served(server, authority.client())
        for client in clients[:4]:  # 3 remain, with the one that was served
            await client.wait_closed()
        for client in clients[4:]:
            assert client.is_open
            client.leave()
        server.close()

    uvloop.run(main())
    assert errors == []


def test_tls_listener_closed_ends_handshakes(tmp_path: Path) -> None:
    authority, errors = Authority(tmp_path), list[BaseException]()

    async def main() -> None:
        server = await start(ServerConfig(port=0, tls=authority.write_certificate()), errors)
        address = server.addresses()[0]
        half = await begin_handshake(server)
        server.close()
        await half.wait_closed()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*address)

    uvloop.run(main())
    assert errors == []
