"""The HTTP client sends a body while it is read: framing, back-pressure, early answers, failures on both sides."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from h2.events import DataReceived, Event, RequestReceived, StreamEnded

from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.http.client.upload import UploadedResponse
from tests.unit.http.client.peers import OK, Caller, Peer, listening, on_sockets, until, whole
from tests.unit.http.client.tls_peers import H2Talk, h2_server

pytestmark = pytest.mark.sockets
PART = b"p" * 65_536


class Source:
    """A body made of parts, which counts how many were taken."""

    def __init__(self, parts: "list[bytes] | AsyncIterator[bytes]", n_bytes: int | None = None) -> None:
        self._parts = parts
        self._n_bytes = n_bytes
        self.n_taken = 0

    @property
    def n_bytes(self) -> int | None:
        return self._n_bytes

    async def read(self) -> bytes:
        if isinstance(self._parts, list):
            part = self._parts.pop(0) if self._parts else b""
        else:
            part = await anext(self._parts, b"")
        self.n_taken += bool(part)
        return part


def upload(caller: Caller, source: Any, *, within_s: float = 5.0) -> asyncio.Task[UploadedResponse]:
    return asyncio.get_running_loop().create_task(caller.client.send_streamed(
        "POST", "/v1/files", [("a", "b")], source, connect_by=time.monotonic() + within_s))


async def read_all(peer: Peer, n_bytes: int) -> tuple[Any, bytes]:
    """The head and so many bytes after it."""
    talk = await peer.accept()
    head = await talk.reader.readuntil(b"\r\n\r\n")
    return talk, head + await talk.reader.readexactly(n_bytes)


def test_upload_of_known_length_is_sent_with_content_length() -> None:
    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = upload(caller, Source([b"abc", b"de"], 5))
            talk, data = await read_all(peer, 5)
            assert b"\r\ncontent-length: 5\r\n" in data
            assert data.endswith(b"\r\n\r\nabcde")
            talk.say(OK)
            assert await whole(await sending) == b"ok"
            assert caller.counts == (1, 0)  # the connection is reused
            caller.client.close()

    on_sockets(main)


def test_upload_of_unknown_length_is_sent_in_chunks() -> None:
    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = upload(caller, Source([b"abc", b"d" * 17]))
            talk, data = await read_all(peer, len(b"3\r\nabc\r\n11\r\n\r\n0\r\n\r\n") + 17)
            assert b"\r\ntransfer-encoding: chunked\r\n" in data
            assert data.endswith(b"3\r\nabc\r\n11\r\n" + b"d" * 17 + b"\r\n0\r\n\r\n")
            talk.say(OK)
            assert await whole(await sending) == b"ok"
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


def test_upload_to_slow_peer_reads_source_no_further() -> None:
    """The source is read as fast as the peer reads: what it may hold are socket buffers, a write buffer and one part."""

    async def main() -> None:
        async with listening() as peer:
            caller, source = Caller(peer.port), Source([PART] * 2000, 2000 * len(PART))
            sending = upload(caller, source, within_s=20)
            talk = await peer.accept()
            n_before = -1
            while source.n_taken != n_before:  # until it stands still
                n_before = source.n_taken
                await asyncio.sleep(0.2)
            assert source.n_taken < 400  # 26 MB of 131; loopback's buffers take some MB
            n_read = 0
            head = await talk.reader.readuntil(b"\r\n\r\n")
            while n_read < 2000 * len(PART):
                n_read += len(await talk.reader.read(1 << 20))
            assert head.startswith(b"POST /v1/files HTTP/1.1\r\n")
            talk.say(OK)
            assert await whole(await sending) == b"ok"
            caller.client.close()

    on_sockets(main)


def test_upload_answered_early_ends_connection() -> None:
    """The answer is read whole, the rest of the body is not sent, and the connection is not reused."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            gate = asyncio.Event()

            async def parts() -> AsyncIterator[bytes]:
                yield b"abc"
                await gate.wait()
                yield b"never"

            sending = upload(caller, Source(parts(), 1000))
            talk, _ = await read_all(peer, 3)
            talk.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            response = await sending
            assert (response.status, await whole(response)) == (413, b"no")
            assert caller.is_unused()
            await talk.left()

    on_sockets(main)


def test_upload_with_failing_source_closes_connection() -> None:
    """The source's own error is raised, and the peer sees an incomplete request."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)

            async def parts() -> AsyncIterator[bytes]:
                yield b"abc"
                raise Rejected("too slow", status=408)

            sending = upload(caller, Source(parts()))
            talk = await peer.accept()
            with pytest.raises(Rejected, match="too slow"):
                await sending
            data = await talk.reader.read()
            assert not data.endswith(b"0\r\n\r\n")
            assert caller.is_unused()

    on_sockets(main)


def test_upload_to_leaving_peer_fails() -> None:
    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = upload(caller, Source([PART] * 100, 100 * len(PART)))
            (await peer.accept()).hang_up()
            with pytest.raises(UpstreamFailed):
                await sending
            assert caller.is_unused()

    on_sockets(main)


def test_upload_cancelled_closes_connection() -> None:
    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            gate = asyncio.Event()

            async def parts() -> AsyncIterator[bytes]:
                yield b"abc"
                await gate.wait()

            sending = upload(caller, Source(parts()))
            talk, _ = await read_all(peer, 3)
            sending.cancel()
            await asyncio.wait([sending])
            assert caller.is_unused()
            await talk.left()

    on_sockets(main)


class CountingTalk(H2Talk):
    """Counts the body, and opens the window only when `opens` is set."""

    n_received = 0
    opens = True
    fields: dict[str, str]

    def act(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self.fields = {name.decode(): value.decode() for name, value in event.headers}
        if isinstance(event, DataReceived):
            self.n_received += len(event.data)
            if not self.opens:
                return
        super().act(event)


def test_upload_over_http2_keeps_to_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the peer opens no window, no more than the window and one part are taken; then the body arrives whole."""

    async def main() -> None:
        monkeypatch.setattr("tests.unit.http.client.tls_peers.H2Talk", CountingTalk)
        monkeypatch.setattr(CountingTalk, "opens", False)
        async with h2_server(None) as served:
            caller, source = Caller(served.port, http="2"), Source([PART] * 40)
            sending = upload(caller, source)
            await until(lambda: bool(served.talks) and getattr(served.talks[0], "n_received", 0) >= 65_535)
            await asyncio.sleep(0.1)
            assert source.n_taken == 1  # its last byte is beyond the window
            talk = served.talks[0]
            assert isinstance(talk, CountingTalk)
            assert "transfer-encoding" not in talk.fields
            monkeypatch.setattr(CountingTalk, "opens", True)
            talk.machine.acknowledge_received_data(65_535, talk.asked[0])
            talk.flush()
            assert await whole(await sending) == b"ok"
            assert talk.n_received == 40 * len(PART)
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


class EarlyTalk(H2Talk):
    """Answers as soon as the head is in."""

    def act(self, event: Event) -> None:
        super().act(event)
        if isinstance(event, RequestReceived):
            self.answer(event.stream_id)
        elif isinstance(event, StreamEnded):
            pytest.fail("the body was not to end")


def test_upload_over_http2_answered_early_resets_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("tests.unit.http.client.tls_peers.H2Talk", EarlyTalk)
        async with h2_server(None) as served:
            caller = Caller(served.port, http="2")
            gate = asyncio.Event()

            async def parts() -> AsyncIterator[bytes]:
                yield b"abc"
                await gate.wait()

            assert await whole(await upload(caller, Source(parts()))) == b"ok"
            await until(lambda: bool(served.talks[0].resets))
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)
