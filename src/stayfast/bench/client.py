"""A server behind HTTP/1.1 as a target: connections, time-outs, one sample a request (docs/decisions/0005).

There is no limit on connections: one would queue requests here and call it the target's speed. A connection is kept while
the target keeps it; the one used last goes out first. A kept connection that turns out to be closed before one byte of the
answer came is replaced once, as SDKs do; the request's clock goes on.
"""

import asyncio
import errno
from dataclasses import dataclass
from math import nan

import msgspec

from stayfast.bench.asking import PATHS, Asker, AskingConfig
from stayfast.bench.exchange import Connection, Exchange
from stayfast.bench.reading import reader_of
from stayfast.bench.samples import Error, Sample
from stayfast.bench.sampling import Tally
from stayfast.bench.schedule import Prompts
from stayfast.bench.target import Asking
from stayfast.core.clock import Clock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api
from stayfast.http.client.client import split_base_url
from stayfast.http.client.dial import Dialer, Origin
from stayfast.http.client.dns import Resolver

DNS_TTL_S = 300.0
_OURS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)  # not the target's fault


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where a target is. `base_url` is what the dialect's SDK takes as its base URL: see `path_of`."""

    base_url: str
    asking: AskingConfig
    ca_file: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        split_base_url(self.base_url)


class HttpTarget:
    """One server. Used on one event loop."""

    def __init__(self, name: str, config: HttpConfig, prompts: Prompts, clock: Clock) -> None:
        base = split_base_url(config.base_url)
        origin = Origin(name, base.host, base.port, ("http/1.1",) if base.is_tls else (), config.ca_file, config.verify)
        self._dialer = Dialer(origin, Resolver(base.host, DNS_TTL_S, clock), clock)
        self._named, self._authority = f"upstream {name}", base.authority
        self._clock = clock
        self._streams = config.asking.stream
        self._api = config.asking.api
        self._allows_empty = config.asking.allow_empty
        self._asker = Asker(config.asking, prompts)
        fields = "".join(f"{name}: {value}\r\n" for name, value in config.asking.all_headers())
        self._head = (f"POST {path_of(base.path, config.asking.api)} HTTP/1.1\r\nhost: {base.authority}\r\n{fields}"
                      "content-length: ").encode()
        self._idle: dict[Connection, None] = {}
        self._busy: dict[Connection, Exchange] = {}
        self._dialing: set[asyncio.Timeout] = set()
        self._tally = Tally([config.asking.key or "", *(value for _, value in config.asking.headers)])

    @property
    def counted_by(self) -> str:
        """See `target.Target`."""
        return self._tally.counted_by

    async def ask(self, asking: Asking) -> Sample:
        """See `target.Target`."""
        body = self._asker.body(asking.shot)
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        loop = asyncio.get_running_loop()
        connect_s = sent_at = nan
        is_fresh = False
        while True:
            exchange = Exchange(reader_of(self._api), streams=self._streams, gaps=asking.gaps, zero_at=asking.zero_at,
                                done=loop.create_future(), allows_empty=self._allows_empty)
            try:
                connection = None if is_fresh else self._kept()
                if connection is None:
                    is_fresh = True
                    connection, connect_s = await self._connect(asking.timeout_at)
            except (UpstreamFailed, TimeoutError) as why:
                exchange.end(_why(why), self._clock.now())
                sample = self._tally.sample(asking, exchange, sent_at, connect_s)
                return msgspec.structs.replace(sample, excerpt=str(why).replace(self._named, self._authority))
            self._busy[connection] = exchange
            at = connection.send(request, exchange)
            if sent_at != sent_at:  # NaN: not sent before
                sent_at = at
            await self._answered(connection, exchange, asking.timeout_at)
            if not (exchange.was_untouched and not is_fresh):
                return self._tally.sample(asking, exchange, sent_at, connect_s)
            is_fresh = True

    def close(self) -> None:
        """See `target.Target`: what is on its way ends as a time-out."""
        now = self._clock.now()
        for connection, exchange in list(self._busy.items()):
            connection.abort()
            exchange.end(Error.TIMEOUT, now)
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()
        for dialing in self._dialing:
            dialing.reschedule(0)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable:
                return connection
        return None

    async def _answered(self, connection: Connection, exchange: Exchange, timeout_at: float) -> None:
        timer = asyncio.get_running_loop().call_later(timeout_at - self._clock.now(), self._time_out, connection, exchange)
        try:
            await exchange.done
        finally:
            timer.cancel()
            self._busy.pop(connection, None)
            if not exchange.done.done():  # cancelled
                connection.abort()

    def _time_out(self, connection: Connection, exchange: Exchange) -> None:
        if not exchange.done.done():
            connection.abort()
            exchange.end(Error.TIMEOUT, self._clock.now())

    async def _connect(self, timeout_at: float) -> tuple[Connection, float]:
        began_at = self._clock.now()
        async with asyncio.timeout(timeout_at - began_at) as dialing:
            self._dialing.add(dialing)
            try:
                dialed = await self._dialer.open()
            finally:
                self._dialing.discard(dialing)
        connection = Connection(dialed.transport, self._clock.now, self._free, self._gone)
        dialed.transport.set_protocol(connection)
        return connection, self._clock.now() - began_at

    def _free(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        self._idle[connection] = None

    def _gone(self, connection: Connection) -> None:
        self._idle.pop(connection, None)


def path_of(base_path: str, api: Api) -> str:
    """Where requests of a dialect go. OpenAI's SDKs take a base URL that ends in /v1, which is added only to a bare host;
    Anthropic's take it without and add /v1 themselves, so of messages both forms are the same."""
    if not base_path or (api is Api.MESSAGES and not base_path.endswith("/v1")):
        base_path += "/v1"
    return base_path + PATHS[api]


def _why(error: UpstreamFailed | TimeoutError) -> Error:
    if isinstance(error, TimeoutError):
        return Error.TIMEOUT
    cause = error.__cause__
    return Error.UNSENT if isinstance(cause, OSError) and cause.errno in _OURS else Error.CONNECT
