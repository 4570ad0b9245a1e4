"""The interface of the running system, and the reference through which the server reaches it.

A reload builds a second system and swaps it in here: new requests use the new one, running requests keep theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from stayfast.core.types import Request
from stayfast.jobs.service import JobService
from stayfast.keys.table import LiveKeys
from stayfast.observe.request_filter import RequestFilter
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.auth import KeyTable
from stayfast.server.config import ServerConfig, is_loopback
from stayfast.server.snapshot.service import SnapshotService
from stayfast.wire.request_body import DecodeLimits


class RecentRequestsQuery(msgspec.Struct, frozen=True):
    """A filter of recent requests."""

    n: int = 50
    is_notable: bool = False  # only slow or failed ones, which are kept longer
    tenant: str | None = None  # None: all tenants
    is_slowest: bool = False  # the slowest of both lists first, instead of the newest
    wanted: RequestFilter = RequestFilter()


class PurgeFilter(msgspec.Struct, frozen=True):
    """Which stored answers to remove: those that match all given fields, or the one of a key."""

    route: str | None = None
    tenant: str | None = None
    tag: str | None = None
    key: bytes | None = None


class RequestService(Protocol):
    """What answers LLM requests."""

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        """Return at the first token of content. Raises StayfastError."""


class AllWorkers(Protocol):
    """Queries over all workers of one parent. Results are JSON."""

    async def cache_stats(self) -> bytes:
        """What the caches of all routes hold and have saved."""

    async def purge(self, what: PurgeFilter) -> bytes:
        """Remove stored answers; returns how many."""

    async def histories(self) -> bytes:
        """What the histories of all routes have done; counts only."""

    async def delete_conversation(self, name: str, tenant: str | None) -> bytes | None:
        """Delete the summaries of a session or conversation; returns how many, or None if there was none. tenant: whose;
        None: of all.
        """

    async def gateways(self) -> bytes:
        """All gateways that share state, this one at least."""

    async def inspect_answer(self, key: bytes) -> bytes | None:
        """One stored answer, without its text; None if there is none."""

    async def recent_requests(self, query: RecentRequestsQuery) -> bytes:
        """Recent requests, newest first."""

    async def compare_prompts(self, version_id: str, before: str) -> bytes | None:
        """A `PromptComparison` in msgpack; None: no worker has the text of the version. before: may be empty."""

    async def traffic(self) -> bytes:
        """Figures of the requests in memory, newest first, for all tenants."""

    async def read_scaling(self) -> bytes:
        """How many replicas each pool needs, and why."""

    async def drain_upstream(self, name: str, what: str) -> bytes | None:
        """Drain or undrain a replica; None: it is unknown, or has no phases."""

    async def recent_request(self, request_id: str, tenant: str | None) -> bytes | None:
        """One recent request in full, if it is of `tenant` (None: of any); None if it is unknown."""


class Backend(Protocol):
    """One running system. Never changes; a reload makes another."""

    @property
    def config(self) -> ServerConfig: ...

    @property
    def gateway(self) -> RequestService: ...

    @property
    def together(self) -> AllWorkers: ...

    @property
    def jobs(self) -> JobService | None:
        """Durable work; None: its store could not be opened."""

    @property
    def keys(self) -> LiveKeys | None:
        """The stored keys; None: this process has no store."""

    @property
    def snapshots(self) -> SnapshotService | None:
        """None: in a laboratory."""

    @property
    def resumable(self) -> frozenset[str]:
        """The models of routes whose streams are stored."""

    @property
    def passthrough(self) -> PassThrough | None:
        """None: it is off."""

    @property
    def text_classifiers(self) -> Mapping[str, TextClassifier]:
        """The classifiers of the settings, by name."""

    def models(self) -> Sequence[str]:
        """The model names of all routes."""

    def unready(self) -> str | None:
        """Why it cannot serve yet; None if it can."""

    def state(self) -> bytes:
        """The live state of this process's upstreams and routes, as JSON."""

    def effective_settings(self) -> bytes:
        """`settings` as in a file with secrets hidden, and `sources` by dotted path, as JSON."""

    async def metrics(self) -> tuple[str, bytes]:
        """Content type and text for /metrics."""


class ActiveSystem:
    """The system that new requests go to. One loop's."""

    __slots__ = ("backend", "config", "http_limits", "is_for_this_machine", "keys", "limits", "on_swap", "passthrough",
                 "resumable")

    def __init__(self, backend: Backend) -> None:
        self.on_swap: Callable[[ServerConfig], None] | None = None  # called after each swap
        self.swap(backend)

    def swap(self, backend: Backend) -> None:
        """Send new requests to `backend`. Host and port stay those of the first one."""
        keys, limits = KeyTable(backend.config, backend.keys), DecodeLimits(max_depth=backend.config.max_depth)
        self.backend, self.config, self.keys, self.limits = backend, backend.config, keys, limits
        self.resumable = backend.resumable
        self.passthrough = backend.passthrough
        config = backend.config
        self.http_limits = config.http_limits()
        self.is_for_this_machine = config.auth == "auto" and not config.demands_key and is_loopback(config.host)
        if self.on_swap is not None:
            self.on_swap(config)
