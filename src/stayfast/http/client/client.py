"""The pooled HTTP client: one per origin, HTTP/1.1 and optionally HTTP/2.

Why not a library: none closes the socket at once when a request is cancelled before its head, bounds memory when a reader
stops, and takes about ten microseconds per request (docs/decisions compares them).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal
from urllib.parse import urlsplit

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, Shed, UpstreamFailed
from stayfast.core.events import ConnectionOpened, ConnectionReused, DescriptorsExhausted, Sink
from stayfast.http.client.dialer import DialedConnection, Dialer, Origin, Resolver
from stayfast.http.client.h1 import H1Connection
from stayfast.http.client.pool import ConnectionPool, PooledConnection
from stayfast.http.client.response import EncodedRequest, RequestTemplate, Response, StreamedRequest, WholeResponse
from stayfast.http.client.upload import BodySource, UploadedResponse
from stayfast.http.descriptors import descriptor_limit

__all__ = ["HttpClient", "HttpConfig", "Response"]

POOL_FULL_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How to reach one origin. `base_url`: scheme, host, optional port and path.

    http: "1.1"; "2" (over TLS by ALPN only, over plain TCP by prior knowledge); "auto" (over TLS the peer's choice, over
    plain TCP 1.1).
    """

    base_url: str
    max_connections: int = 0  # 0: no limit
    max_idle: int = 256
    keepalive_s: float = 50.0  # shorter than the usual 60 s of servers, so that the client closes first
    http: Literal["auto", "1.1", "2"] = "auto"
    ca_file: str | None = None  # trust only these certificates; None: the system's
    verify: bool = True
    max_head_bytes: int = 65_536
    dns_ttl_s: float = 30.0
    tcp_keepalive_s: float = 30.0  # interval of TCP probes, which detect a dead peer; 0: off

    def __post_init__(self) -> None:
        split_base_url(self.base_url)
        if self.http not in ("auto", "1.1", "2"):
            raise ValueError(f'http must be "auto", "1.1" or "2", not {self.http!r}')
        for name, low, high in (("max_connections", 0, 1_000_000), ("max_idle", 0, 1_000_000),
                                ("keepalive_s", 0, 86_400), ("max_head_bytes", 1024, 16_777_216),
                                ("dns_ttl_s", 0, 86_400), ("tcp_keepalive_s", 0, 7200)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The parts of a base URL. `authority`: the Host header; `path`: without a trailing slash."""

    is_tls: bool
    host: str
    port: int
    authority: str
    path: str


def split_base_url(text: str) -> BaseUrl:
    """Parse a base URL. Raises ValueError without quoting the URL, which may contain a password."""
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError:
        raise ValueError("base_url is not a URL with a valid host and port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("base_url must be http://host... or https://host...")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("base_url must have no user, password, query or fragment")
    if not parts.path.isascii() or any(char <= " " or char == "\x7f" for char in text):
        raise ValueError("base_url must have no spaces, control or non-ASCII characters in its path")
    is_tls = parts.scheme == "https"
    name = f"[{host}]" if ":" in host else host
    return BaseUrl(is_tls, host, port or (443 if is_tls else 80), name if port is None else f"{name}:{port}",
                   parts.path.rstrip("/"))


class HttpClient:
    """All requests to one origin. Used on one event loop, by any number of tasks."""

    def __init__(self, name: str, config: HttpConfig, *, sink: Sink, clock: Clock) -> None:
        base = split_base_url(config.base_url)
        self.name = name
        self.base_path = base.path
        self._config = config
        self._authority = base.authority
        self._sink = sink
        self._clock = clock
        protocols = {"auto": ("h2", "http/1.1"), "1.1": ("http/1.1",), "2": ("h2",)}[config.http] if base.is_tls else ()
        self._resolver = Resolver(base.host, config.dns_ttl_s, clock)
        origin = Origin(name, base.host, base.port, protocols, config.ca_file, config.verify, config.tcp_keepalive_s)
        self._dialer = Dialer(origin, self._resolver, clock)
        self._reused = ConnectionReused(name)
        self._version = "-"
        self._pool = ConnectionPool(config.max_connections, config.max_idle, config.keepalive_s,
                          is_shared=config.http == "2" or "h2" in protocols, clock=clock)
        if self._pool.is_shared:
            import_module("stayfast.http.client.h2")  # takes 75 ms; not at the first connection, which a request waits for

    @property
    def n_idle(self) -> int:
        return self._pool.n_idle

    @property
    def n_busy(self) -> int:
        """Connections with at least one request, without those retired by GOAWAY."""
        return self._pool.n_busy

    def make_template(self, method: str, path: str, headers: Sequence[tuple[str, str]]) -> RequestTemplate:
        """The common part of similar requests. path: the request target, with `base_path`. headers: without host,
        content-length and connection.
        """
        return RequestTemplate(method, path, headers, upstream=self.name, authority=self._authority)

    async def send(self, template: RequestTemplate, headers: Sequence[tuple[str, str]], body: bytes, *,
                   connect_by: float, may_resend: bool, on_sent: Callable[[], None] | None = None) -> Response:
        """Send one request; return when the head of its response has arrived.

        headers: in addition to those of the template.
        connect_by: deadline for a connection, including the wait for a free one.
        may_resend: send again, once, if a pooled connection closes before the first byte of the response. A request that
        the peer certainly did not process is sent again, once, in any case.
        on_sent: called each time the request has been written, for work that can overlap with the peer's. Its exceptions
        propagate.
        Raises UpstreamFailed CONNECT, TIMEOUT (no connection by connect_by), RESET or MALFORMED; Shed for limits of this
        process: no free connection by connect_by, or no descriptor.
        When cancelled, the socket is closed (HTTP/2: the stream is reset) before CancelledError propagates.
        """
        request = EncodedRequest(template, headers, body)
        is_fresh = False
        while True:
            opened = None
            connection = None if is_fresh else self._pool.try_acquire()
            if connection is None:
                connection, opened = await self._acquire(connect_by, is_fresh=is_fresh)
            response = connection.send_request(request)
            if opened is None:  # emitted while the upstream works
                self._sink.emit(self._reused)
            try:
                if on_sent is not None:
                    on_sent()
                await response.wait_head()
            except UpstreamFailed:
                is_stale = response.was_untouched and opened is None and may_resend
                if is_fresh or not (is_stale or response.was_refused) or self._clock.now() >= connect_by:
                    raise
                is_fresh = True
                continue
            except BaseException:
                response.close()
                raise
            if opened is not None:
                self._dialer.save_session(opened)
            return response

    async def send_streamed(self, method: str, path: str, headers: Sequence[tuple[str, str]], source: BodySource, *,
                            connect_by: float) -> UploadedResponse:
        """Send one request whose body is read from `source` while it is sent; return when the head of the response has
        arrived. path, connect_by: as for `make_template` and `send`. The request is sent again only if the connection had
        closed before its first byte was written. Raises like `send`; also the errors of the source.
        """
        template = RequestTemplate(method, path, headers, upstream=self.name, authority=self._authority, is_streamed=True)
        request = StreamedRequest(template, (), source.n_bytes)
        is_fresh = False
        while True:
            connection = None if is_fresh else self._pool.try_acquire()
            opened = None
            if connection is None:
                connection, opened = await self._acquire(connect_by, is_fresh=is_fresh)
            response = connection.send_request(request)
            if response.was_refused and not is_fresh:
                is_fresh = True
                continue
            if opened is None:
                self._sink.emit(self._reused)
            uploaded = UploadedResponse(connection, response, source)
            try:
                await uploaded.wait_head()
            except BaseException:
                uploaded.close()
                raise
            if opened is not None:
                self._dialer.save_session(opened)
            return uploaded

    async def fetch(self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes = b"", *,
                    timeout_s: float, max_body_bytes: int) -> WholeResponse:
        """Send one request and read its response, up to `max_body_bytes` of the body. Never resends: the peer may have
        processed the request.

        Raises like `send`; also UpstreamFailed TIMEOUT if the response is not complete after `timeout_s`.
        """
        connect_by = self._clock.now() + timeout_s
        template = self.make_template(method, path, headers)
        parts, n_bytes = [], 0
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.send(template, (), body, connect_by=connect_by, may_resend=False)
                try:
                    while n_bytes < max_body_bytes and (data := await response.read()):
                        parts.append(data)
                        n_bytes += len(data)
                finally:
                    response.close()
        except TimeoutError:
            raise UpstreamFailed(self.name, Fault.TIMEOUT, f"upstream {self.name} took more than {timeout_s:g} s") from None
        return WholeResponse(response.status, response.headers, b"".join(parts)[:max_body_bytes])

    def close(self) -> None:
        """Close idle connections now, busy ones after their requests. Later requests open and close their own."""
        self._pool.close()

    async def _acquire(self, connect_by: float, *, is_fresh: bool) -> tuple[PooledConnection, DialedConnection | None]:
        waiting_for = "a free connection"
        try:
            async with asyncio.timeout_at(connect_by):
                connection = await self._pool.acquire(is_fresh=is_fresh)
                if connection is not None:
                    return connection, None
                waiting_for = "a new connection"
                return await self._dial()
        except TimeoutError:
            if self._pool.is_full and waiting_for == "a free connection":
                raise Shed(f"every connection to upstream {self.name} is in use", reason="pool_full",
                           code="upstream_pool_full", retry_after_s=POOL_FULL_RETRY_S) from None
            late = UpstreamFailed(self.name, Fault.TIMEOUT, f"timed out waiting for {waiting_for}")
            late.detail = f"{self._dialer.address}: no connection in time"
            raise late from None

    async def _dial(self) -> tuple[PooledConnection, DialedConnection]:
        try:
            dialed = await self._dialer.open()
            connection = self._make_connection(dialed)
        except BaseException as error:
            self._pool.cancel_dial()
            if isinstance(error, Shed):
                self._sink.emit(DescriptorsExhausted("connect", descriptor_limit(), self.name))
            raise
        self._pool.add_dialed(connection)
        if dialed.connect_protocol.early:
            connection.data_received(dialed.connect_protocol.early)
        return connection, dialed

    def _make_connection(self, dialed: DialedConnection) -> PooledConnection:
        config = self._config
        loop = asyncio.get_running_loop()
        is_h2 = dialed.protocol == "h2" or (config.http == "2" and dialed.tls is None)
        if config.http == "2" and not is_h2:
            dialed.transport.abort()
            raise UpstreamFailed(self.name, Fault.CONNECT, f"upstream {self.name} does not offer HTTP/2")
        connection: PooledConnection
        if is_h2:
            from stayfast.http.client.h2 import H2Connection  # noqa: PLC0415 - not needed for HTTP/1.1

            connection = H2Connection(self.name, self._authority, dialed.transport, self._pool,
                                      max_head_bytes=config.max_head_bytes, loop=loop)
        else:
            connection = H1Connection(self.name, dialed.transport, self._pool, config.max_head_bytes, loop)
        dialed.transport.set_protocol(connection)
        self._pool.is_shared = is_h2
        self._version = "2" if is_h2 else "1.1"
        tls = dialed.tls
        self._sink.emit(ConnectionOpened(self.name, dialed.handshake_s, self._version, tls is not None,
                                         tls is not None and bool(tls.session_reused), dialed.connect_s))
        return connection

    def __repr__(self) -> str:
        pool = self._pool
        return (f"<HttpClient {self.name}: {pool.n_busy} busy, {pool.n_idle} idle, {pool.n_dialing} connecting, "
                f"{pool.n_waiting} waiting, h{self._version.removesuffix('.1')}>")
