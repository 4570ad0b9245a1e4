"""Opens connections to one origin: DNS, TCP, TLS.

DNS stays off the request path. Problem: a look-up takes milliseconds, sometimes seconds, and would delay a request each
time its result has expired. Rule: a result is fresh for `ttl_s`; after that it is used for up to `STALE_FOR_S` while a new
look-up runs. `getaddrinfo` reports no TTL, so `ttl_s` is a setting. When wrong: a host moves and its old address still
accepts connections: these go to the old host until the look-up ends. If no address accepts connections, the result is
dropped.

IPv6 and IPv4 are raced (RFC 8305, simplified): the second family starts when the first has failed or has taken
`HEAD_START_S`, so that a broken IPv6 path delays a connection by a quarter of a second, not by the time-out.

TLS offers the session of the last connection, which saves the certificate exchange. asyncio and uvloop have no parameter for
the session, so it is set where both create the TLS object (`ResumingContext.wrap_bio`).
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.http.descriptors import are_exhausted, exhausted_error, is_exhaustion

STALE_FOR_S = 600.0
RETRY_AFTER_S = 1.0  # between a failed refresh and the next

Address = tuple[int, str]  # address family, literal IP
Lookup = Callable[..., list[tuple[Any, ...]]]


class Resolver:
    """One host's addresses, best first as the system sorts them (RFC 6724). Used on one event loop only."""

    __slots__ = ("_clock", "_fresh_until", "_host", "_known", "_lookup", "_pending", "_ttl_s")

    def __init__(self, host: str, ttl_s: float, clock: Clock, lookup: Lookup = socket.getaddrinfo) -> None:
        self._host = host
        self._ttl_s = ttl_s
        self._clock = clock
        self._lookup = lookup
        self._known = parse_ip_literal(host)
        self._fresh_until = float("inf") if self._known else 0.0
        self._pending: asyncio.Future[list[tuple[Any, ...]]] | None = None

    @property
    def is_refreshing(self) -> bool:
        """Whether a look-up is running."""
        return self._pending is not None

    async def resolve(self) -> tuple[Address, ...]:
        """At least one address. Raises OSError (socket.gaierror) if the look-up fails and no earlier result is usable.

        Concurrent callers share one look-up; cancelling a caller does not cancel it.
        """
        now = self._clock.now()
        if self._known and now < self._fresh_until:
            return self._known
        if self._pending is None:
            lookup = partial(self._lookup, self._host, None, type=socket.SOCK_STREAM)
            self._pending = asyncio.get_running_loop().run_in_executor(None, lookup)
            self._pending.add_done_callback(self._store_result)
        if self._known and now < self._fresh_until + STALE_FOR_S:
            return self._known
        assert self._pending is not None
        await asyncio.shield(self._pending)
        return self._known

    def drop_result(self) -> None:
        """Drop the result, because no address could be reached: the next use waits for a new look-up."""
        if self._fresh_until != float("inf"):
            self._known = ()
            self._fresh_until = 0.0

    def _store_result(self, done: asyncio.Future[list[tuple[Any, ...]]]) -> None:
        self._pending = None
        now = self._clock.now()
        if done.cancelled() or done.exception() is not None:
            self._fresh_until = max(self._fresh_until, now + RETRY_AFTER_S) if self._known else 0.0
            return
        self._known = tuple(dict.fromkeys((found[0], found[4][0]) for found in done.result()))
        self._fresh_until = now + self._ttl_s


def parse_ip_literal(host: str) -> tuple[Address, ...]:
    """The address if `host` is a literal IP address, else ()."""
    try:
        version = ip_address(host).version
    except ValueError:
        return ()
    return ((socket.AF_INET if version == 4 else socket.AF_INET6, host),)


HEAD_START_S = 0.25
KEEPALIVE_PROBES = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """`protocols`: the ALPN names to offer over TLS, best first; () for plain TCP."""

    upstream: str
    host: str
    port: int
    protocols: tuple[str, ...]
    ca_file: str | None = None
    verify: bool = True
    tcp_keepalive_s: float = 30.0


class ResumingContext(ssl.SSLContext):
    """A client context that offers `session`, the last session of its origin."""

    session: ssl.SSLSession | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool = False,
                 server_hostname: str | bytes | None = None, session: ssl.SSLSession | None = None) -> ssl.SSLObject:
        """As in `ssl.SSLContext`; uses the stored session if none is given."""
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session or self.session)


def make_client_context(ca_file: str | None, *, verify: bool, protocols: Sequence[str]) -> ResumingContext:
    """Trust the system's certificates, or only those in `ca_file`. Reads files. Raises OSError."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file is not None:
        context.load_verify_locations(ca_file)
    else:
        context.load_default_certs()
    context.set_alpn_protocols(list(protocols))
    return context


class ConnectProtocol(asyncio.Protocol):
    """Buffers bytes that arrive before the connection has its HTTP protocol."""

    def __init__(self) -> None:
        self.early = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        """An HTTP/2 server may send first."""
        self.early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@dataclass(frozen=True, slots=True)
class DialedConnection:
    """A connection, ready for `transport.set_protocol`, which must then get the bytes of `early` first."""

    transport: asyncio.Transport
    connect_protocol: ConnectProtocol
    handshake_s: float  # TCP and TLS
    connect_s: float  # TCP alone

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS object; None for plain TCP."""
        found: ssl.SSLObject | None = self.transport.get_extra_info("ssl_object")
        return found

    @property
    def protocol(self) -> str | None:
        return self.tls.selected_alpn_protocol() if self.tls is not None else None


class NoAddressReachable(OSError):
    """No address could be reached. `tried`: each address with its error."""

    def __init__(self, last: OSError, tried: Sequence[str]) -> None:
        super().__init__(last.errno, last.strerror or type(last).__name__)
        self.tried = ", ".join(tried)


class Dialer:
    """Opens connections to one origin. Used on one event loop only."""

    __slots__ = ("_clock", "_context", "_origin", "_resolver")

    def __init__(self, origin: Origin, resolver: Resolver, clock: Clock) -> None:
        self._origin = origin
        self._resolver = resolver
        self._clock = clock
        self._context: ResumingContext | None = None

    async def open(self) -> DialedConnection:
        """Connect. Raises UpstreamFailed CONNECT, or Shed if this process has no descriptor left. If cancelled, no socket
        stays open.
        """
        context = await self._load_context() if self._origin.protocols else None
        try:
            addresses = await self._resolver.resolve()
        except OSError as error:
            raise self._unreachable_error("cannot be resolved", error, self._origin.host) from error
        began_at = self._clock.now()
        transport, connect_protocol = await self._connect(addresses)
        connect_s = self._clock.now() - began_at
        try:
            self._set_socket_options(transport)
            if context is not None:
                transport = await self._start_tls(transport, connect_protocol, context)
            if connect_protocol.is_lost or transport.is_closing():
                raise self._connect_error("closed the connection at once")
        except OSError as error:  # setting options fails on some systems if the connection has been reset
            transport.abort()
            raise self._unreachable_error("cannot be reached", error) from error
        except BaseException:
            transport.abort()
            raise
        return DialedConnection(transport, connect_protocol, self._clock.now() - began_at, connect_s)

    def save_session(self, dialed: DialedConnection) -> None:
        """Offer this connection's TLS session to the next one. Call it after the first response: TLS 1.3 sends the session
        late.
        """
        if self._context is not None and dialed.tls is not None and dialed.tls.context is self._context:
            self._context.session = dialed.tls.session

    async def _load_context(self) -> ResumingContext:
        if self._context is None:  # reading the system's certificates takes milliseconds, so it runs in a thread
            origin = self._origin
            build = partial(make_client_context, origin.ca_file, verify=origin.verify, protocols=origin.protocols)
            try:
                context = await asyncio.get_running_loop().run_in_executor(None, build)
            except OSError as error:
                if is_exhaustion(error):
                    raise self._exhausted_error() from error
                raise UpstreamFailed(origin.upstream, Fault.CONNECT, f"the ca_file of upstream {origin.upstream} cannot be "
                                     f"used: {error.strerror or 'no certificate in it'}") from error
            if self._context is None:  # concurrent callers may each have built one; sessions belong to one context
                self._context = context
        return self._context

    async def _connect(self, addresses: Sequence[Address]) -> tuple[asyncio.Transport, ConnectProtocol]:
        first = [address for address in addresses if address[0] == addresses[0][0]]
        second = [address for address in addresses if address[0] != addresses[0][0]]
        try:
            return await (self._race_families(first, second) if second else self._try_each(first))
        except OSError as error:
            failure = self._unreachable_error("cannot be reached", error)
            if isinstance(failure, UpstreamFailed):
                self._resolver.drop_result()
            raise failure from error

    async def _try_each(self, addresses: Sequence[Address]) -> tuple[asyncio.Transport, ConnectProtocol]:
        loop = asyncio.get_running_loop()
        failure, tried = OSError("no address"), list[str]()
        for family, ip in addresses:
            try:
                return await loop.create_connection(ConnectProtocol, ip, self._origin.port, family=family)
            except OSError as error:
                failure = error
                tried.append(f"{f'[{ip}]' if ':' in ip else ip}:{self._origin.port}: {_error_name(error)}")
        raise NoAddressReachable(failure, tried)

    async def _race_families(self, first: Sequence[Address],
                             second: Sequence[Address]) -> tuple[asyncio.Transport, ConnectProtocol]:
        loop = asyncio.get_running_loop()
        racing = {loop.create_task(self._try_each(first))}
        winner: asyncio.Task[tuple[asyncio.Transport, ConnectProtocol]] | None = None
        try:
            done, _ = await asyncio.wait(racing, timeout=HEAD_START_S)
            if not any(task.exception() is None for task in done):
                racing.add(loop.create_task(self._try_each(second)))
            pending = racing
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                winner = next((task for task in done if task.exception() is None), None)
                if winner is not None:
                    return winner.result()
            return next(iter(racing)).result()
        finally:
            for task in racing - {winner}:
                task.cancel()
                task.add_done_callback(abort_loser)

    async def _start_tls(self, transport: asyncio.Transport, connect_protocol: ConnectProtocol,
                         context: ResumingContext) -> asyncio.Transport:
        if connect_protocol.early:  # plain bytes must not count as protected by TLS
            raise self._connect_error("does not speak TLS")
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(transport, connect_protocol, context, server_hostname=self._origin.host)
        except ssl.SSLCertVerificationError as error:
            raise self._connect_error(f"has an untrusted certificate: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise self._connect_error(f"refused TLS: {error.reason or 'handshake failed'}") from error
        except OSError as error:
            raise self._connect_error(f"failed in the TLS handshake: {error.strerror or type(error).__name__}",
                                      f"{self.address}: {_error_name(error)}") from error
        if secured is None:
            raise self._connect_error("closed the connection in the TLS handshake")
        return secured

    def _set_socket_options(self, transport: asyncio.Transport) -> None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        idle_s = round(self._origin.tcp_keepalive_s)
        if idle_s:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; other systems use their own intervals
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // KEEPALIVE_PROBES))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)

    @property
    def address(self) -> str:
        """Host and port, for error details."""
        return f"{self._origin.host}:{self._origin.port}"

    def _unreachable_error(self, what: str, error: OSError, where: str | None = None) -> StayfastError:
        """A failure of this process if it has no descriptor left, else of the upstream."""
        if is_exhaustion(error) or (isinstance(error, socket.gaierror) and are_exhausted()):
            return self._exhausted_error()
        tried = error.tried if isinstance(error, NoAddressReachable) else f"{where or self.address}: {_error_name(error)}"
        return self._connect_error(f"{what}: {error.strerror or type(error).__name__}", tried)

    def _exhausted_error(self) -> StayfastError:
        return exhausted_error(f"to connect to upstream {self._origin.upstream}")

    def _connect_error(self, what: str, detail: str = "") -> UpstreamFailed:
        failed = UpstreamFailed(self._origin.upstream, Fault.CONNECT, f"upstream {self._origin.upstream} {what}")
        failed.detail = detail or self.address
        return failed


def _error_name(error: OSError) -> str:
    """The symbolic name of an error, such as ECONNREFUSED or the resolver's EAI_NONAME; else the exception's."""
    if isinstance(error, socket.gaierror):
        names = [name for name in dir(socket) if name.startswith("EAI_") and getattr(socket, name) == error.errno]
        return names[0] if names else type(error).__name__
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def abort_loser(task: asyncio.Task[tuple[asyncio.Transport, ConnectProtocol]]) -> None:
    """Close the connection of the family that lost the race; its failure, if any, is ignored."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()
