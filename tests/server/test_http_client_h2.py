"""The HTTP client and HTTP/2: many requests on one connection, and what happens when it ends."""

import asyncio
import time

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import ConnectionOpened, ConnectionReused
from tests.unit.http.client.peers import OK, PROMPT_S, Caller, Talk, listening, on_sockets, until, whole
from tests.unit.http.client.tls_peers import Trust, caller_to, h2_server

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """One authority for all tests here."""
    return Trust(tmp_path_factory.mktemp("tls"))


def test_http2_demanded(trust: Trust) -> None:
    """`http: "2"` and a peer that does not offer it: CONNECT, saying so."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust, http="2")
            with pytest.raises(UpstreamFailed, match="does not offer HTTP/2") as failed:
                await caller.send()
            assert failed.value.fault is Fault.CONNECT
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize("is_tls", [True, False])
def test_burst_on_one_connection(trust: Trust, is_tls: bool) -> None:
    """Requests that come at once share one HTTP/2 connection, also while it is being opened."""

    async def main() -> None:
        async with h2_server(trust.server("h2") if is_tls else None) as served:
            caller = caller_to(served.port, trust) if is_tls else Caller(served.port, http="2")
            for response in await asyncio.gather(*(caller.send(body=b"x" * 2000) for _ in range(40))):
                assert await whole(response) == b"ok"
            assert len(served.talks) == 1
            assert len(caller.sink.facts_of(ConnectionOpened)) == 1
            assert len(caller.sink.facts_of(ConnectionReused)) == 39
            assert caller.counts == (1, 0)
            caller.client.close()
            await until(lambda: served.talks[0].is_closed)

    on_sockets(main)


def test_burst_on_http1(trust: Trust) -> None:
    """When the peer turns out to speak HTTP/1.1 only, those that waited for the first connection open their own."""

    async def main() -> None:
        async with listening(tls=trust.server("http/1.1")) as peer:
            caller = caller_to(peer.port, trust)
            sending = [caller.send() for _ in range(5)]

            async def serve(talk: Talk) -> None:
                await talk.request()
                talk.say(OK)

            for _ in sending:
                await serve(await peer.accept())
            assert [await whole(await one) for one in sending] == [b"ok"] * 5
            assert caller.counts == (5, 0)
            caller.client.close()

    on_sockets(main)


def test_cancelled_stream(trust: Trust) -> None:
    """Cancelled before its head, a request's stream is reset at once; the others and the connection go on."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            gone, stays = caller.send(), caller.send()
            await until(lambda: bool(served.talks) and len(served.talks[0].asked) == 2)
            talk = served.talks[0]
            cancelled_at = time.monotonic()
            gone.cancel()
            await until(lambda: bool(talk.resets))
            ((stream_id, reset_at),) = talk.resets.items()
            assert reset_at - cancelled_at < PROMPT_S
            talk.answer(4 - stream_id)
            assert await whole(await stays) == b"ok"
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


def test_goaway_moves_on(trust: Trust) -> None:
    """A request that the peer did not take before its GOAWAY is sent again on a new connection, even if only once may be."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = caller.send(may_resend=False)
            await until(lambda: bool(served.talks) and bool(served.talks[0].asked))
            served.talks[0].machine.close_connection(last_stream_id=0)
            served.holds = False
            served.talks[0].flush()
            assert await whole(await sending) == b"ok"
            assert len(served.talks) == 2
            caller.client.close()

    on_sockets(main)


def test_goaway_every_time(trust: Trust) -> None:
    """A peer that takes nothing is tried twice, no more."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = caller.send()
            for n_tried in (1, 2):
                await until(lambda: len(served.talks) == n_tried and bool(served.talks[-1].asked))  # noqa: B023
                served.talks[-1].machine.close_connection(last_stream_id=0)
                served.talks[-1].flush()
            with pytest.raises(UpstreamFailed, match="refused the request on this connection") as failed:
                await sending
            assert failed.value.fault is Fault.RESET
            assert len(served.talks) == 2

    on_sockets(main)


def test_lost_connection_fails_all(trust: Trust) -> None:
    """A connection that breaks fails all its streams; on a new connection nothing is sent again."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = [caller.send(may_resend=False) for _ in range(3)]
            await until(lambda: bool(served.talks) and len(served.talks[0].asked) == 3)
            served.talks[0].transport.abort()
            for result in await asyncio.gather(*sending, return_exceptions=True):
                assert isinstance(result, UpstreamFailed)
                assert result.fault is Fault.RESET
            assert len(served.talks) == 1
            assert caller.counts == (0, 0)

    on_sockets(main)
