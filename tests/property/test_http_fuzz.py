"""Arbitrary bytes to the edge, without sockets: never an exception, never a 500, never more answers than requests."""

import asyncio
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stayfast.http.server.connection import ConnectionTasks, HttpServer, ServerConnection
from stayfast.server.admin_endpoints import AdminApp
from stayfast.server.app import GatewayApp
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig
from stayfast.server.http_request import LlmHttpRequest
from stayfast.server.jobs.app import JobsApp
from stayfast.server.jobs.table import make_endpoints
from stayfast.server.ui.app import UiApp
from stayfast.server.ui.sessions import Sessions
from stayfast.testing import RecordingSink, SimLoop, run
from tests.server.fakes import ANSWER, CHAT, STREAM, FakeBackend, FakeGateway, get, post

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_BODIES = st.sampled_from([CHAT, STREAM, b"", b"{", b"[" * 99, b'{"model":1}', b"\xff"])
_LINES = st.sampled_from([
    "connection: close", "connection: Upgrade", "upgrade: h2c", "expect: 100-continue", "expect: 200-ok",
    "content-length: 3", "transfer-encoding: chunked",
    "host: u", "x-request-timeout: 1", "x-request-timeout: x", "content-type: text/plain",
    "content-encoding: gzip", "x-request-id: a b", "authorization: Bearer abc", "x" * 300 + ": y", "trailer: x",
])
_REQUESTS = st.one_of(
    st.builds(lambda body, path, lines: post(body, path, *lines), _BODIES,
              st.sampled_from(["/v1/chat/completions", "/v1/messages", "/v1/responses", "/livez", "/v1/models/a%2fb", "*"]),
              st.lists(_LINES, max_size=3)),
    st.builds(lambda path, method: get(path, method=method),
              st.sampled_from(["/", "/livez", "/metrics", "/openapi.json", "/x"]),
              st.sampled_from(["GET", "HEAD", "POST", "CONNECT", "OPTIONS", "TRACE", "PRI", "SOURCE", "FOO"])),
    st.sampled_from([b"\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"\0", b"\n", b"0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]),
    st.binary(max_size=40),
)
_CUTS = st.lists(st.integers(1, 400), min_size=1, max_size=20)


class Wire(asyncio.Transport):
    """A transport that records written bytes, at any speed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False
        self._loop = loop
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data, "an empty write"
        assert not self.is_closed, "a write after the close"
        self.sent += bytes(data)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The client sees our end; it may go on sending."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever unsent."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What was read is given at once here."""

    def resume_reading(self) -> None:
        """Likewise."""


async def talk(loop: SimLoop, parts: list[bytes]) -> tuple[bytes, list[BaseException]]:
    """Feed these reads to a connection and wait until it closes; its output and its errors."""
    errors: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    backend = FakeBackend(ServerConfig(max_head_bytes=1024, max_body_bytes=1024, sse_keepalive_s=0.5),
                          FakeGateway(lambda request: [0.3, 0.3, b"data: a\n\n" if request.stream else ANSWER]))
    current = ActiveSystem(backend)
    tasks = ConnectionTasks(errors.append)
    admin_app = AdminApp(current, clock=loop, version="0", is_draining=lambda: False)
    jobs_app = JobsApp(current, clock=loop, sink=RecordingSink(), make_endpoints=make_endpoints)
    ui_app = UiApp(current, clock=loop, version="0", sessions=Sessions(bytes(32)), make_session_id=lambda: "0")
    app = GatewayApp(current, clock=loop, sink=RecordingSink(), tasks=tasks, entropy=b"12345678", admin_app=admin_app,
                     jobs_app=jobs_app, ui_app=ui_app, start_trace=None)
    server: HttpServer[LlmHttpRequest] = HttpServer(app, loop, tasks)
    connection = ServerConnection(server)
    wire = Wire(loop, connection)
    connection.connection_made(wire)
    for part in parts:
        if wire.is_closed:
            break
        connection.data_received(part)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(600):  # virtual seconds: every wait of a connection is bounded
        while server.connections:  # in virtual time a look costs nothing
            await asyncio.sleep(1)
    assert len(tasks) == 0
    return wire.sent, errors


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in reads of these sizes, over and over."""
    parts, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        parts.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return parts


@settings(max_examples=300, deadline=None)
@given(st.lists(_REQUESTS, min_size=1, max_size=6), _CUTS)
@example([post(CHAT, "/v1/chat/completions", "x-request-timeout: 1")], [1])
def test_http_server_any_bytes_never_raise(requests: list[bytes], sizes: list[int]) -> None:
    """Requests good and bad, glued and cut anywhere: only 1xx, 2xx and 4xx answers, and every connection ends.

    The one 5xx is the client's own doing: 504, where it gave its request a second and sent it more slowly than that.
    """
    data = b"".join(requests)
    sent, errors = run(lambda loop: talk(loop, cut(data, sizes)))
    assert errors == []
    statuses = [int(status) for status in _STATUS.findall(sent)]
    ours = [status for status in statuses if not (status == 504 and b"x-request-timeout: 1" in data)]
    assert all(status < 500 for status in ours), statuses
    assert len([status for status in statuses if status >= 200]) <= len(data) // 16 + 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([post(), post(STREAM), get("/livez"), post(b"{"), get("/nope")]), min_size=1, max_size=5),
       _CUTS)
def test_http_server_result_is_independent_of_splits(requests: list[bytes], sizes: list[int]) -> None:
    """The statuses are those of a single read, in order."""
    data = b"".join(requests)
    whole, _ = run(lambda loop: talk(loop, [data]))
    split, errors = run(lambda loop: talk(loop, cut(data, sizes)))
    assert errors == []
    assert _STATUS.findall(split) == _STATUS.findall(whole)
    assert len(_STATUS.findall(split)) == len(requests)
