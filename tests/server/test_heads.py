"""Heads known by their bytes: what is taken without the parser, what never is, and what ends it."""

import asyncio
from itertools import pairwise

import httptools
import pytest

from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.server.auth import digest
from stayfast.server.backend import Current
from stayfast.server.config import ServerConfig
from stayfast.server.heads import MOST_HEADS, Heads
from stayfast.server.inbound import Inbound
from stayfast.server.reader import BODY, IDLE, MAX_PIPELINED, Reader
from stayfast.server.routes import admit
from tests.server.fakes import CHAT, STREAM, FakeBackend, post, serving
from tests.server.test_reader import Ticking

_KEY, _OTHER_KEY = "sf-0123456789abcdef", "sf-fedcba9876543210"


class NoParser(httptools.HttpRequestParser):
    """In place of the parser where none is to be asked."""

    def feed_data(self, data: object) -> None:
        raise AssertionError(f"parsed: {data!r:.100}")


class Door:
    """Readers of one loop's connections, and what they share."""

    def __init__(self, config: ServerConfig | None = None) -> None:
        self.current = Current(FakeBackend(config or ServerConfig()))
        self.heads = Heads(self.current)

    def gate(self, inbound: Inbound) -> StayfastError | None:
        return admit(inbound, self.current, is_draining=not self.heads.is_open)

    def reader(self, *, parses: bool = True) -> Reader:
        """A connection's; one that does not parse fails where a head is not known."""
        reader = Reader(self.current.config, Ticking(), self.gate, self.heads)
        if not parses:
            reader._parser = NoParser(reader)
        return reader


def key_line(key: str) -> str:
    """How a key is sent."""
    return f"authorization: Bearer {key}"


def taken(reader: Reader, *reads: bytes) -> Inbound:
    """The one request of these reads."""
    for data in reads:
        reader.feed(data)
    assert reader.phase == IDLE
    return reader.ready.popleft()


def test_a_head_that_was_let_in_is_not_parsed_again() -> None:
    """Whatever its body's length, whole or in parts, here or on another connection."""
    door = Door(ServerConfig(keys={"ann": digest(_KEY)}))
    head = post(b"", "/v1/chat/completions?a=b", key_line(_KEY), "x-stayfast-priority: high")
    head = head.replace(b"length: 0", b"length: %d")
    first = taken(door.reader(), head % len(CHAT) + CHAT)
    again = door.reader(parses=False)
    for body in (STREAM, b"xy", b"y" * 100_000):
        data = head % len(body) + body
        end = len(data) - len(body)
        for cuts in ([], [end], [end + 1], [end, end + len(body) // 2]):
            inbound = taken(again, *(data[start:stop] for start, stop in pairwise([0, *cuts, len(data)])))
            assert (inbound.method, inbound.path, inbound.query, inbound.body) == ("POST", first.path, b"a=b", body)
            assert (inbound.fields, inbound.api, inbound.tenant) == (first.fields, first.api, "ann")
            assert (inbound.keep_alive, inbound.refusal, inbound.is_http_10) == (True, None, False)


def test_a_head_that_came_alone_is_known_too() -> None:
    """Many clients write the body after it."""
    door, data = Door(), post()
    end = len(data) - len(CHAT)
    assert taken(door.reader(), data[:end], data[end:]).body == CHAT
    assert taken(door.reader(parses=False), data).body == CHAT


def test_ids_may_differ() -> None:
    """Each request has its own."""
    door = Door()
    lines = ("x-request-id: %s", "X-Amzn-Trace-Id: %s", "traceparent: %s")
    first = taken(door.reader(), post(CHAT, "/v1/messages", *(line % "one" for line in lines)))
    second = taken(door.reader(parses=False), post(CHAT, "/v1/messages", *(line % "two" for line in lines)))
    assert (first.fields[b"x-request-id"], second.fields[b"x-request-id"]) == (b"one", b"two")
    assert second.fields == {**first.fields, b"x-request-id": b"two", b"traceparent": b"two"}


def test_words_may_differ() -> None:
    """What tracers and proxies write into each request has commas and spaces in it; at its ends it is the parser's."""
    door = Door()
    lines = ("x-forwarded-for: %s", "baggage: %s", "sentry-trace: %s", "b3: %s", "traceparent: %s")
    first = taken(door.reader(), post(CHAT, "/v1/messages", *(line % "10.0.0.1, 10.0.0.2" for line in lines)))
    data = post(CHAT, "/v1/messages", *(line % "10.0.0.3,  10.0.0.4, c=d;e" for line in lines))
    assert taken(door.reader(parses=False), data).fields == taken(Door().reader(), data).fields
    assert first.fields.keys() == taken(Door().reader(), data).fields.keys()
    for value in (" a", "a ", " "):
        data = post(CHAT, "/v1/messages", *(line % value for line in lines))
        assert taken(door.reader(), data).fields == taken(Door().reader(), data).fields


@pytest.mark.parametrize("line", ["connection: close", "expect: 100-continue", "upgrade: h2c", "content-length: 57",
                                  "content-type: text/plain", "x-pad: " + "a" * 4096, "x-request-id: a\r\nx-request-id: b",
                                  "traceparent: a\r\ntraceparent: b"])
def test_what_is_not_plain_is_never_known(line: str) -> None:
    """Nor what was refused."""
    door = Door()
    door.reader().feed(post(CHAT, "/v1/messages", line))
    assert len(door.heads) == 0


def test_other_versions_methods_paths_and_framing_are_never_known() -> None:
    """Only a plain POST to a hot path is."""
    door = Door()
    for data in (post().replace(b"1.1", b"1.0"), post().replace(b"POST", b"GET"), post(CHAT, "/livez"), post(CHAT, "/x"),
                 post(b""), b"\r\n" + post(), post() + post(), post().replace(b"length: ", b"length: 0"),
                 post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n"):
        door.reader().feed(data)
        assert len(door.heads) == 0, data
    door.reader().feed(post())
    assert len(door.heads) == 1


def test_a_reload_ends_what_was_known() -> None:
    """A key that it revokes is not let in by its bytes, on connections that used it either; others are judged anew."""
    door = Door(ServerConfig(keys={"ann": digest(_KEY), "bob": digest(_OTHER_KEY)}))
    anns, bobs = door.reader(), door.reader()
    for reader, key in ((anns, _KEY), (bobs, _OTHER_KEY)):
        for _ in range(2):
            assert taken(reader, post(CHAT, "/v1/messages", key_line(key))).refusal is None
    door.current.swap(FakeBackend(ServerConfig(keys={"bobby": digest(_OTHER_KEY)})))
    for reader in (anns, door.reader()):
        refusal = taken(reader, post(CHAT, "/v1/messages", key_line(_KEY))).refusal
        assert refusal is not None
        assert refusal.status == 401
    assert taken(bobs, post(CHAT, "/v1/messages", key_line(_OTHER_KEY))).tenant == "bobby"
    assert taken(door.reader(parses=False), post(CHAT, "/v1/messages", key_line(_OTHER_KEY))).tenant == "bobby"
    assert len(door.heads) == 1


def test_a_drain_ends_what_was_known() -> None:
    """A known head is refused like any other."""
    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            for _ in range(2):
                client.send(post())
                assert (await client.answer())[0] == 200
            assert len(running.server.edge.heads) == 1
            running.server.edge.drain()
            client.send(post())
            assert (await client.answer())[0] == 503

    asyncio.run(main())


def test_limits_are_those_of_the_connection() -> None:
    """A head known from a connection with wider limits goes to the parser, and so does a body that is too long."""
    door = Door()
    data = post(b"x" * 1500, "/v1/messages", *(f"x-{n}: {'a' * 100}" for n in range(10)))
    assert taken(door.reader(), data).refusal is None
    for config, status in ((ServerConfig(max_headers=12), 431), (ServerConfig(max_head_bytes=1024), 431),
                           (ServerConfig(max_body_bytes=1024), 413),
                           (ServerConfig(max_headers=13, max_body_bytes=1500), None)):
        reader = Reader(config, Ticking(), door.gate, door.heads)
        reader.feed(data)
        refusal = reader.ready.popleft().refusal
        assert (None if refusal is None else refusal.status) == status


def test_few_are_kept_and_those_in_use_stay() -> None:
    """One more than there is room for puts out the oldest that nobody came with."""
    door = Door()
    heads = [post(CHAT, "/v1/messages", f"x: {n}") for n in range(MOST_HEADS + 1)]
    for data in heads[:-1]:
        door.reader().feed(data)
    taken(door.reader(parses=False), heads[0])
    door.reader().feed(heads[-1])
    assert len(door.heads) == MOST_HEADS
    assert door.heads.find(heads[0]) is not None
    assert door.heads.find(heads[1]) is None
    assert door.heads.find(heads[2]) is not None


def test_a_client_of_ever_new_heads_costs_little() -> None:
    """After a few that are new, its heads are looked at only now and then; the one that comes again is known again."""
    door = Door()
    reader = door.reader()
    for n in range(1000):
        taken(reader, post(CHAT, "/v1/messages", f"x: {n}"))
    assert len(door.heads) < 1000 / 64 * 10
    for _ in range(64):
        taken(reader, post())
    reader._parser = NoParser(reader)
    assert taken(reader, post()).body == CHAT


def test_reading_ahead_is_bounded_for_known_heads_too() -> None:
    """So many wait on one connection, and the one after them is the last."""
    reader = Door().reader()
    for _ in range(MAX_PIPELINED * 2):
        reader.feed(post())
    assert [inbound.keep_alive for inbound in reader.ready] == [True] * MAX_PIPELINED + [False]
    reader.ready.clear()
    reader.feed(post())
    assert (len(reader.ready), reader.is_over) == (0, True)


def test_time_limits_hold_for_a_body_whose_head_is_known() -> None:
    """By what arrived, and by what patience the client has."""
    for line, status, allowed_s in (("x: y", 408, 30 + 2), ("x-request-timeout: 3.5", 504, 3.5)):
        door = Door()
        data = post(b"x" * 100_000, "/v1/messages", line)
        taken(door.reader(), data)
        reader = door.reader(parses=False)
        reader.feed(data[: -100_000 + 32_768])
        assert (reader.phase, reader.due_at()) == (BODY, 1 + allowed_s)
        for _ in range(3):
            reader._clock.now()  # a second each
        reader.time_out()
        [late] = reader.ready
        assert late.refusal is not None
        assert (late.refusal.status, late.is_broken, reader.is_over) == (status, True, True)
        assert isinstance(late.refusal, DeadlineExceeded) == (status == 504)
        reader.feed(data[-10:])
        assert len(reader.ready) == 1


def test_no_key_is_shown() -> None:
    """Not by heads, and not by the table."""
    door = Door(ServerConfig(keys={"ann": digest(_KEY)}))
    data = post(CHAT, "/v1/messages", key_line(_KEY))
    door.reader().feed(data)
    assert repr(door.heads.find(data)) == "<Head of /v1/messages, 4 headers>"
    assert repr(door.heads) == "<Heads: 1 known>"
