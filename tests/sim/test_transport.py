"""The transport itself, byte by byte: framing, what breaks and how, and how soon a client's leaving is seen."""

import re
import socket
import struct
import time
from contextlib import suppress

import pytest

from tests.sim.running import Sim, eventually

pytestmark = pytest.mark.sockets

WHOLE = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"max_completion_tokens":20}'
STREAMED = WHOLE[:-1] + b',"stream":true}'
NOTICED_S = 0.3  # how soon the simulator must see that its client has gone: an event, and not a time-out


def post(body: bytes, provider: str = "openai", more: bytes = b"") -> bytes:
    """A request as bytes."""
    return b"POST /%b/v1/chat/completions HTTP/1.1\r\nhost: sim\r\n%bcontent-length: %d\r\n\r\n%b" % (
        provider.encode(), more, len(body), body)


def until(connection: socket.socket, end: bytes, got: bytes = b"") -> bytes:
    """Everything up to `end`."""
    while end not in got:
        data = connection.recv(65536)
        assert data, f"closed after {got!r}"
        got += data
    return got


def rest(connection: socket.socket) -> tuple[bytes, bool]:
    """Everything until the connection ends, and whether a reset ended it."""
    got = b""
    try:
        while data := connection.recv(65536):
            got += data
    except ConnectionResetError:
        return got, True
    return got, False


def whole_answer(connection: socket.socket) -> bytes:
    """An answer with a content-length."""
    got = until(connection, b"\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    while len(body) < int(found[1]):
        body += connection.recv(65536)
    assert len(body) == int(found[1])
    return head + b"\r\n\r\n" + body


def test_sim_stream_is_chunked_and_ends(sim: Sim) -> None:
    with sim.socket() as connection:
        for _ in range(2):
            connection.sendall(post(STREAMED))
            got = until(connection, b"\r\n0\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"transfer-encoding: chunked" in got
            assert b"data: [DONE]\n\n" in got


def test_sim_529_has_its_reason_phrase(sim: Sim) -> None:
    sim.fails(kind="status", status=529)
    with sim.socket() as connection:
        connection.sendall(post(WHOLE))
        assert whole_answer(connection).startswith(b"HTTP/1.1 529 Overloaded\r\n")


def test_sim_pipelined_requests_are_answered_in_order(sim: Sim) -> None:
    with sim.socket() as connection:
        connection.sendall(post(STREAMED) + post(b"{}") + post(WHOLE))
        got = until(connection, b"\r\n0\r\n\r\n")
        stream, _, got = got.partition(b"\r\n0\r\n\r\n")
        while got.count(b'"object":"chat.completion"') < 1:
            got += connection.recv(65536)
    assert stream.startswith(b"HTTP/1.1 200 ")
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/1.1 200 OK" in got


def test_sim_many_pipelined_requests_are_all_answered(sim: Sim) -> None:
    n = 500
    with sim.socket() as connection:
        connection.sendall(post(WHOLE) * n)
        got = b""
        while got.count(b"HTTP/1.1 200 OK") < n or not got.endswith(b"}"):
            got += connection.recv(1 << 20)
    assert sim.counts("openai")["n_asked"] == n


def test_sim_chunked_body_and_body_in_pieces(sim: Sim) -> None:
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (WHOLE[:7], WHOLE[7:])) + b"0\r\n\r\n"
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ntransfer-encoding: chunked\r\n\r\n" + pieces
    with sim.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(asked)):
            connection.sendall(asked[at:at + 1])
        assert whole_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_expect_100_continue(sim: Sim) -> None:
    """A client that waits for leave to send its body gets it."""
    asked = post(WHOLE, more=b"expect: 100-continue\r\n")
    head, body = asked[:-len(WHOLE)], asked[-len(WHOLE):]
    with sim.socket() as connection:
        connection.sendall(head)
        assert until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert whole_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_connection_close_and_http_10(sim: Sim) -> None:
    """Who asks for it gets the connection closed; HTTP/1.0 gets no chunks."""
    with sim.socket() as connection:
        connection.sendall(post(STREAMED, more=b"connection: close\r\n"))
        got, _ = rest(connection)
        assert b"connection: close\r\n" in got
        assert got.endswith(b"0\r\n\r\n")
    with sim.socket() as connection:
        connection.sendall(post(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0"))
        got, _ = rest(connection)
        assert b"chunked" not in got
        assert got.endswith(b"data: [DONE]\n\n")


def test_sim_head_answer_has_no_body(sim: Sim) -> None:
    with sim.socket() as connection:
        connection.sendall(b"HEAD /v1/chat/completions HTTP/1.1\r\nhost: sim\r\n\r\n")
        assert until(connection, b"\r\n\r\n").endswith(b"\r\n\r\n")
        connection.sendall(post(WHOLE))
        assert whole_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_sim_upgrade_is_declined(sim: Sim) -> None:
    with sim.socket() as connection:
        connection.sendall(post(WHOLE, more=b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"))
        assert whole_answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("sent", "status"), [
    (b"NONSENSE\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000, b"431"),
    (b"POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: 99999999999\r\n\r\n" + b"x" * 40_000_000, b"413"),
])
def test_sim_malformed_or_too_large_request_is_rejected(sim: Sim, sent: bytes, status: bytes) -> None:
    with sim.socket() as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it need not take all of it
            connection.sendall(sent)
        assert until(connection, b"\r\n").startswith(b"HTTP/1.1 " + status)


def test_fault_reset_before_the_head(sim: Sim) -> None:
    sim.fails(kind="reset")
    with sim.socket() as connection:
        connection.sendall(post(STREAMED))
        assert rest(connection) == (b"", True)
    assert sim.last()["ended"] == "reset"


def test_fault_reset_inside_the_body(sim: Sim) -> None:
    sim.fails(kind="reset_mid", after_chunks=2)
    with sim.socket() as connection:
        connection.sendall(post(STREAMED))
        got, was_reset = rest(connection)
    assert was_reset
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"data: " in got
    assert b"[DONE]" not in got


def test_fault_cut_ends_without_the_last_chunk(sim: Sim) -> None:
    sim.fails(kind="cut")
    with sim.socket() as connection:
        connection.sendall(post(STREAMED))
        got, was_reset = rest(connection)
    assert not was_reset
    assert b"data: " in got
    assert not got.endswith(b"0\r\n\r\n")


def test_fault_truncated_ends_cleanly(sim: Sim) -> None:
    sim.fails(kind="truncated")
    with sim.socket() as connection:
        connection.sendall(post(STREAMED))
        got = until(connection, b"\r\n0\r\n\r\n")
    assert b"[DONE]" not in got


def test_fault_hang_and_silent(sim: Sim) -> None:
    for kind, is_head_there in (("hang", False), ("silent", True)):
        sim.control("POST", "reset")
        sim.fails(kind=kind)
        with sim.socket() as connection:
            connection.sendall(post(STREAMED))
            if is_head_there:
                assert until(connection, b"\r\n\r\n").endswith(b"\r\n\r\n")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        eventually(lambda: sim.last()["ended"] == "left")


def test_fault_slow_headers(sim: Sim) -> None:
    sim.fails(kind="slow_headers", seconds=0.3)
    with sim.socket() as connection:
        began_at = time.monotonic()
        connection.sendall(post(WHOLE))
        whole_answer(connection)
        assert 0.29 < time.monotonic() - began_at < 2


@pytest.mark.parametrize("is_rude", [False, True])
def test_sim_disconnect_is_noticed_at_once(sim: Sim, *, is_rude: bool) -> None:
    with sim.socket() as connection:
        connection.sendall(post(STREAMED, "slow"))
        until(connection, b"data: ")
        if is_rude:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left_at = time.time()
    eventually(lambda: sim.last()["ended"] == "left")
    last = sim.last()
    assert last["asked_at"] + last["seconds"] - left_at < NOTICED_S
    assert sim.counts("slow")["outcomes"] == {"cancelled": 1}


def test_sim_slow_reader_delays_its_provider(sim: Sim) -> None:
    body = STREAMED.replace(b'"max_completion_tokens":20', b'"max_completion_tokens":40000,"ignore_eos":true')
    with sim.socket() as connection:
        connection.sendall(post(body))
        until(connection, b"\r\n\r\n")
        eventually(lambda: sim.last()["n_chunks"] > 0)
        before = sim.last()["n_chunks"]
        time.sleep(0.1)  # what must not happen takes time not to happen
        assert sim.last()["n_chunks"] == before < 40_000
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got = (got + connection.recv(1 << 20))[-64:]
    assert sim.last()["ended"] == "whole"
