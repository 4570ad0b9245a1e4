"""The address and the credentials of an upstream, for requests that are passed to it.

Its connections are its own. Problem: on a shared HTTP/2 connection an upload of 200 MB uses up the window that the bodies of
chat requests need. Rule: another pool, with HTTP/1.1 unless the upstream's settings demand HTTP/2.
"""

from collections.abc import Sequence
from dataclasses import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Sink
from stayfast.core.types import Api
from stayfast.http.client.client import HttpClient, HttpConfig, split_base_url
from stayfast.http.client.websocket import SocketDialer
from stayfast.upstreams.dialect import DialectUpstream
from stayfast.wire.errors import failure_of_response


class PassedEndpoint:
    """One upstream. Used on one event loop."""

    __slots__ = ("_clock", "_dialect", "base", "base_path", "client", "name", "sockets")

    def __init__(self, dialect: DialectUpstream, config: HttpConfig, sink: Sink, clock: Clock) -> None:
        base = split_base_url(config.base_url)
        own = replace(config, http="2" if config.http == "2" else "1.1")
        self.name = dialect.name
        self.base = f"{'https' if base.is_tls else 'http'}://{base.authority}"
        self.base_path = base.path
        self.client = HttpClient(dialect.name, own, sink=sink, clock=clock)
        self.sockets = SocketDialer(dialect.name, own, clock)
        self._dialect = dialect
        self._clock = clock

    def own_headers(self, method: str, target: str) -> Sequence[tuple[str, str]]:
        """Credentials, and the headers of the settings. Raises UpstreamFailed without a valid credential."""
        return self._dialect.headers_of_unread(method, target)

    def failure_of(self, status: int, headers: dict[str, str], body: bytes) -> StayfastError:
        """The error for a response that is not passed on, without the upstream's secrets."""
        failed = failure_of_response(self.name, Api.CHAT, status, headers, body, now_wall=self._clock.wall())
        return self._dialect.redact(failed)

    def close(self) -> None:
        """Close idle connections; those in use close with their requests."""
        self.client.close()

    def __repr__(self) -> str:
        return f"<PassedEndpoint {self.client!r}>"
