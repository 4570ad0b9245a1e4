"""The HTTP client over TLS: trust, resumption, ALPN."""

from typing import Any

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import ConnectionOpened, ConnectionReused
from tests.unit.http.client.peers import PROMPT_S, listening, on_sockets, whole
from tests.unit.http.client.tls_peers import Trust, caller_to, h2_server

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """One authority for all tests here."""
    return Trust(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_resumption(trust: Trust, loop: str) -> None:
    """The second connection resumes the first one's session, and the facts say so."""

    async def main() -> None:
        async with listening(tls=trust.server("http/1.1")) as peer:
            caller = caller_to(peer.port, trust)
            for _ in range(3):
                await caller.ask(peer, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            opened = caller.sink.facts_of(ConnectionOpened)
            assert [(fact.tls, fact.tls_resumed, fact.http_version) for fact in opened] == [
                (True, False, "1.1"), (True, True, "1.1"), (True, True, "1.1")]
            assert caller.counts == (0, 0)

    on_sockets(main, loop=loop)


def test_keep_alive_over_tls(trust: Trust) -> None:
    """Pooled connections are reused; closing idle ones does not linger."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust)
            talk = await caller.ask(peer)
            assert await caller.exchange(talk, caller.send(body=b"x" * 300_000)) == b"ok"
            assert len(caller.sink.facts_of(ConnectionReused)) == 1
            caller.client.close()
            assert await talk.left() < PROMPT_S

    on_sockets(main)


@pytest.mark.parametrize(("config", "host", "words"), [
    ({"ca_file": None}, "127.0.0.1", "an untrusted certificate"),
    ({}, "other.test", "an untrusted certificate: .*127.0.0.1"),
    ({"ca_file": "/nowhere/ca.pem"}, "127.0.0.1", "ca_file of upstream up cannot be used: No such file"),
])
def test_not_trusted(trust: Trust, config: dict[str, Any], host: str, words: str) -> None:
    """An unknown authority, another name's certificate or a missing file: CONNECT, saying which."""

    async def main() -> None:
        async with listening(tls=trust.server(host=host)) as peer:
            caller = caller_to(peer.port, trust, **config)
            with pytest.raises(UpstreamFailed, match=words) as failed:
                await caller.send()
            assert failed.value.fault is Fault.CONNECT
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_trust_switched_off(trust: Trust) -> None:
    """`verify: false` takes any certificate."""

    async def main() -> None:
        async with listening(tls=trust.server(host="other.test")) as peer:
            caller = caller_to(peer.port, trust, verify=False, ca_file=None)
            await caller.ask(peer)
            caller.client.close()

    on_sockets(main)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_peer_without_tls(trust: Trust, said: bytes) -> None:
    """A peer that does not speak TLS, or hangs up in the handshake: CONNECT."""

    async def main() -> None:
        async with listening() as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.reader.read(5)
            talk.say(said)
            talk.writer.close()
            with pytest.raises(UpstreamFailed) as failed:
                await sending
            assert failed.value.fault is Fault.CONNECT
            assert failed.value.message.startswith("upstream up ")
            assert "127.0.0.1" not in failed.value.message
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_cancelled_in_the_handshake(trust: Trust, loop: str) -> None:
    """Cancelled or timed out in the handshake, the peer sees it at once and nothing is left."""

    async def main() -> None:
        async with listening() as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.reader.readexactly(5)
            sending.cancel()
            assert await talk.left() < PROMPT_S
            assert sending.cancelled()
            with pytest.raises(UpstreamFailed, match="waiting for a new connection") as failed:
                await caller.send(within_s=0.05)
            assert failed.value.fault is Fault.TIMEOUT
            assert await (await peer.accept()).left() < PROMPT_S
            assert caller.is_unused()

    on_sockets(main, loop=loop)


def test_left_in_the_body_over_tls(trust: Trust) -> None:
    """Closing an unfinished answer closes the socket at once, without waiting for the peer's goodbye."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhe")
            response = await sending
            assert await response.read() == b"he"
            response.close()
            assert await talk.left() < PROMPT_S
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize(("http", "offered", "version"), [
    ("auto", ("h2", "http/1.1"), "2"), ("2", ("h2",), "2"), ("auto", ("http/1.1",), "1.1"), ("auto", (), "1.1"),
    ("1.1", ("h2", "http/1.1"), "1.1"),
])
def test_negotiation(trust: Trust, http: str, offered: tuple[str, ...], version: str) -> None:
    """ALPN decides between what both sides allow; a peer without ALPN gets HTTP/1.1."""

    async def main() -> None:
        if version == "2":
            async with h2_server(trust.server(*offered)) as served:
                caller = caller_to(served.port, trust, http=http)
                assert await whole(await caller.send()) == b"ok"
                assert repr(caller.client) == "<HttpClient up: 0 busy, 1 idle, 0 connecting, 0 waiting, h2>"
                caller.client.close()
        else:
            async with listening(tls=trust.server(*offered)) as peer:
                caller = caller_to(peer.port, trust, http=http)
                await caller.ask(peer)
                caller.client.close()
        assert [fact.http_version for fact in caller.sink.facts_of(ConnectionOpened)] == [version]

    on_sockets(main)
