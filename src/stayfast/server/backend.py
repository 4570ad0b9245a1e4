"""What the edge needs of the running system, and the one place where it looks it up.

A reload builds a second system beside the first and swaps it in here: requests that come after it see the new one,
answers under way keep the one they began with.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stayfast.core.types import Request
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.auth import Keys
from stayfast.server.config import ServerConfig, is_loopback
from stayfast.wire.json_input import DecodeLimits


class RecentRequestsQuery(msgspec.Struct, frozen=True):
    """Which recent requests somebody wants to see."""

    n: int = 50
    is_notable: bool = False  # only those that were slow or went wrong, which are kept for longer
    tenant: str | None = None  # only this one's; None: everybody's


class PurgeFilter(msgspec.Struct, frozen=True):
    """Which kept answers are to be forgotten: those of which all that is given is true; or the one of a key."""

    route: str | None = None
    tenant: str | None = None
    tag: str | None = None
    key: bytes | None = None


class Service(Protocol):
    """The story of a request."""

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        """Return at the first token of content. Raises StayfastError."""


class AllWorkers(Protocol):
    """All workers of one parent, as one."""

    async def cache_stats(self) -> bytes:
        """What the caches of all routes hold and saved, as JSON; for admins."""

    async def forget(self, what: PurgeFilter) -> bytes:
        """Forget kept answers; how many, as JSON."""

    async def inspect_answer(self, key: bytes) -> bytes | None:
        """What is known of one kept answer, as JSON, but for its words; None where none is."""

    async def requests(self, query: RecentRequestsQuery) -> bytes:
        """Recent requests as JSON, newest first."""

    async def request(self, request_id: str, tenant: str | None) -> bytes | None:
        """One recent request in full, as JSON, if it is `tenant`'s (None: anybody's); None where it is not kept."""


class Backend(Protocol):
    """One running system. Never changes; a reload makes another."""

    @property
    def config(self) -> ServerConfig:
        """The edge's own settings."""

    @property
    def gateway(self) -> Service:
        """Who answers requests."""

    @property
    def together(self) -> AllWorkers:
        """What admins ask of all workers."""

    def models(self) -> Sequence[str]:
        """The names that clients may ask for."""

    def unready(self) -> str | None:
        """Why it cannot serve yet; None when it can."""

    def state(self) -> bytes:
        """What this process knows of its upstreams, as JSON; for admins."""

    async def metrics(self) -> tuple[str, bytes]:
        """Content type and text for /metrics."""


class ActiveSystem:
    """The system that new requests go to. One loop's."""

    __slots__ = ("backend", "config", "http_limits", "is_for_this_machine", "keys", "limits")

    def __init__(self, backend: Backend) -> None:
        self.swap(backend)

    def swap(self, backend: Backend) -> None:
        """Send requests that come from here on to `backend`. Host and port of the first one stay."""
        keys, limits = Keys(backend.config), DecodeLimits(max_depth=backend.config.max_depth)
        self.backend, self.config, self.keys, self.limits = backend, backend.config, keys, limits
        config = backend.config
        self.http_limits = config.http_limits()
        self.is_for_this_machine = config.auth == "auto" and not config.demands_key and is_loopback(config.host)
