"""An upstream over HTTP: the end of its response, signs of life, and the texts of its errors."""

import asyncio
import gzip
import json
import time

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api, Chunk
from stayfast.http.client import response
from tests.server.upstream_rig import HEAD, KEY, LAST, Bench, bench, framed, plain, rest
from tests.unit.http.client.peers import PROMPT_S, Caller, Talk, listening, on_sockets, until
from tests.unit.wire.recorded import ROLE, STREAMS, chunk, sse

pytestmark = pytest.mark.sockets
WAIT_S = 2.0  # for what would come late or never
GRACE_S = 0.5  # longer than the real one, to tell it from "at once" on a busy machine


@pytest.fixture(autouse=True)
def _grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "GRACE_S", GRACE_S)


async def whole_but_for_the_body(it: Bench, api: Api, client: Api) -> Talk:
    """An answer that its protocol has ended and its body has not; the client waits for nothing."""
    opening = it.open(client)
    talk = await it.peer.accept()
    await talk.request()
    talk.say(HEAD + framed(STREAMS[f"{api.value}_text"].data))
    stream = await opening
    began_at = time.monotonic()
    said = b"".join(one.data for one in await rest(stream))
    assert time.monotonic() - began_at < PROMPT_S
    assert stream.summary.is_complete
    assert (b"[DONE]" if client is Api.CHAT else b"message_stop") in said
    return talk


@pytest.mark.parametrize("client", [Api.CHAT, Api.MESSAGES])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_http_stream_ends_with_last_event(api: Api, client: Api) -> None:
    """The client has its end at once; a body that never ends costs a connection after a moment, pings or not."""

    async def main() -> None:
        async with bench(api) as it:
            talk = await whole_but_for_the_body(it, api, client)
            talk.say(framed(b": ping\n\n"))
            assert it.caller.counts == (0, 1)
            assert GRACE_S / 2 < await talk.left() < WAIT_S
            assert it.caller.counts == (0, 0)

    on_sockets(main)


def test_http_stream_body_end_keeps_connection() -> None:
    """The body's end comes a few milliseconds later, as from any server: the next request goes out on the same line."""

    async def main() -> None:
        async with bench() as it:
            talk = await whole_but_for_the_body(it, Api.CHAT, Api.CHAT)
            await asyncio.sleep(0.005)
            talk.say(LAST)
            await until(lambda: it.caller.counts == (1, 0))
            opening = it.open()
            await talk.request()
            await asyncio.sleep(GRACE_S + 0.05)  # the first answer's moment is over: it must not touch the second
            talk.say(HEAD + framed(STREAMS["chat_text"].data) + LAST)
            assert (await rest(await opening))[-1].data.endswith(b"data: [DONE]\n\n")
            assert it.caller.counts == (1, 0)

    on_sockets(main)


def test_http_stream_disconnect_closes_upstream() -> None:
    """The moment of grace is for whole answers only."""

    async def main() -> None:
        async with bench() as it:
            opening = it.open()
            talk = await it.peer.accept()
            await talk.request()
            talk.say(HEAD + framed(sse(ROLE, chunk({"content": "a"}))))
            stream = await opening
            assert await stream.next() is not None
            stream.close()
            assert await talk.left() < PROMPT_S

    on_sockets(main)


@pytest.mark.parametrize("client", [Api.CHAT, Api.RESPONSES])
def test_http_stream_pings_reset_idle_timeout(client: Api) -> None:
    """A read that holds nothing for a client of another dialect still comes up, empty, so that no idle time-out runs."""

    async def main() -> None:
        async with bench(Api.MESSAGES) as it:
            opening = it.open(client)
            talk = await it.peer.accept()
            await talk.request()
            talk.say(HEAD)
            stream = await opening
            for _ in range(3):
                talk.say(framed(b'event: ping\ndata: {"type": "ping"}\n\n'))
                assert await stream.next() == Chunk(b"", 0)
            stream.close()

    on_sockets(main)


@pytest.mark.parametrize("stream", [True, False])
def test_upstream_compressed_answer_is_reported(*, stream: bool) -> None:
    """Identity is asked for; who compresses all the same is told apart from who sends nonsense."""

    async def main() -> None:
        async with bench() as it:
            opening = it.open(stream=stream)
            talk = await it.peer.accept()
            assert b"\r\naccept-encoding: identity\r\n" in await talk.request()
            body = gzip.compress(STREAMS["chat_text"].data)
            kind = "text/event-stream" if stream else "application/json"
            talk.say(plain("200 OK", body, "Content-Encoding: gzip").replace(b"application/json", kind.encode()))
            with pytest.raises(UpstreamFailed, match=r"compressed its answer \(gzip\)") as failed:
                await opening
            assert failed.value.fault is Fault.MALFORMED
            assert failed.value.is_for_operator  # other upstreams are asked, this one is not asked again

    on_sockets(main)


def test_upstream_redirect_is_reported() -> None:
    """It is not followed (the key would go along), and the same upstream is not asked again."""

    async def main() -> None:
        async with bench() as it:
            failed = await it.failure(plain("307 Temporary Redirect", b"", "Location: http://127.0.0.1:1/steal"))
            assert "sent a redirect (307), which is not followed" in failed.message
            assert "steal" not in failed.message
            assert (failed.fault, failed.status, failed.is_for_operator) == (Fault.STATUS, 502, True)

    on_sockets(main)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 204 No Content\r\n\r\n", plain("202 Accepted", b"{}"), plain("200 OK", b"<html>", "X: y"),
    plain("501 Not Implemented", b"no")])
def test_upstream_whole_answer_to_stream_request_is_not_retried(answer: bytes) -> None:
    """Its server is set up so: it would be the same again, and paid for again."""

    async def main() -> None:
        async with bench() as it:
            assert (await it.failure(answer)).is_for_operator

    on_sockets(main)


ERROR = {"error": {"message": f"bad key Bearer {KEY}", "type": "invalid_request_error", "code": None}}
BODY = json.dumps(ERROR).encode()


@pytest.mark.parametrize(("answer", "stream"), [
    (plain("400 Bad Request", BODY), True), (plain("400 Bad Request", BODY), False),
    (plain("200 OK", BODY), True), (plain("200 OK", BODY), False),
    (HEAD + framed(b"data: " + BODY + b"\n\n") + LAST, True), (HEAD + framed(b"data: " + BODY + b"\n\n") + LAST, False)])
def test_upstream_echoed_key_is_scrubbed(answer: bytes, *, stream: bool) -> None:
    """By status, in a whole answer and in a stream: the error keeps its words and loses the key."""

    async def main() -> None:
        async with bench() as it:
            failed = await it.failure(answer, stream=stream)
            assert b"bad key Bearer [redacted]" in failed.body
            assert KEY not in f"{failed.message} {failed.code} {failed.body!r}"

    on_sockets(main)


@pytest.mark.parametrize("always_streams", [False, True])
def test_upstream_stream_instead_of_whole_answer_and_vice_versa_is_accepted(*, always_streams: bool) -> None:
    """A stream where a whole answer was asked for, or the other way round: the client gets its whole answer of both."""
    streamed = (HEAD + framed(b'data: {"choices":[{"index":0,"delta":{"content":"hey"},"finish_reason":"stop"}]}\n\n'
                              b"data: [DONE]\n\n") + LAST)
    whole = plain("200 OK", b'{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"hey"},'
                            b'"finish_reason":"stop"}]}')

    async def main() -> None:
        async with bench(always_streams=always_streams) as it:
            opening = it.open(stream=False)
            talk = await it.peer.accept()
            assert (b"accept: text/event-stream" in await talk.request()) is always_streams
            talk.say(whole if always_streams else streamed)
            stream = await opening
            (chunk,) = [one for one in await rest(stream) if one.data]
            assert json.loads(chunk.data)["choices"][0]["message"]["content"] == "hey"
            assert stream.summary.is_complete

    on_sockets(main)


def test_upstream_unreadable_answer_leaves_no_connection() -> None:
    """What fails while the answer is awaited closes the connection."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)

            def fail() -> None:
                raise ValueError("no")

            with pytest.raises(ValueError, match="no"):
                await caller.client.send(caller.client.make_template("POST", "/v1/x", []), [], b"", may_resend=True,
                                         connect_by=time.monotonic() + 5, on_sent=fail)
            assert caller.counts == (0, 0)
            assert await (await peer.accept()).left() < WAIT_S

    on_sockets(main)
