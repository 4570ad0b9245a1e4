"""Addresses of one host, resolved off the request path.

Problem: a look-up costs milliseconds and sometimes seconds, and would stand in front of a request each time its result has
aged. Rule: a result is used for `ttl_s`; after that it is still used while a new look-up runs, for up to `STALE_FOR_S`.
`getaddrinfo` tells no TTL, so `ttl_s` is a choice, not the record's own. Wrong when a host moves away and its old address
still accepts connections: then up to one look-up's time is lost. An address that refuses is forgotten by `forget`.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any

from stayfast.core.clock import Clock

STALE_FOR_S = 600.0
RETRY_AFTER_S = 1.0  # a failed refresh is tried again no sooner

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
        self._known = literal(host)
        self._fresh_until = float("inf") if self._known else 0.0
        self._pending: asyncio.Future[list[tuple[Any, ...]]] | None = None

    async def addresses(self) -> tuple[Address, ...]:
        """At least one address. Raises OSError (socket.gaierror) when the look-up fails and nothing is known.

        Look-ups are shared: a cancelled caller leaves the others' alone.
        """
        now = self._clock.now()
        if self._known and now < self._fresh_until:
            return self._known
        if self._pending is None:
            self._start()
        if self._known and now < self._fresh_until + STALE_FOR_S:
            return self._known
        assert self._pending is not None
        await asyncio.shield(self._pending)
        return self._known

    def forget(self) -> None:
        """No known address could be reached: look up anew before the next use."""
        if self._fresh_until != float("inf"):
            self._known = ()
            self._fresh_until = 0.0

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._pending = loop.run_in_executor(None, partial(self._lookup, self._host, None, type=socket.SOCK_STREAM))
        self._pending.add_done_callback(self._learn)

    def _learn(self, done: asyncio.Future[list[tuple[Any, ...]]]) -> None:
        self._pending = None
        now = self._clock.now()
        if done.cancelled() or done.exception() is not None:
            self._fresh_until = max(self._fresh_until, now + RETRY_AFTER_S) if self._known else 0.0
            return
        self._known = tuple(dict.fromkeys((found[0], found[4][0]) for found in done.result()))
        self._fresh_until = now + self._ttl_s


def literal(host: str) -> tuple[Address, ...]:
    """The address that `host` is, if it is one."""
    try:
        version = ip_address(host).version
    except ValueError:
        return ()
    return ((socket.AF_INET if version == 4 else socket.AF_INET6, host),)
