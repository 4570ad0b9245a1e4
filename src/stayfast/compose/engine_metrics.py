"""Scrapers of the engines that the settings name (`engine_metrics`) and of embedded ones, and how their readings reach all
workers: the first worker reads each engine, and sends every reading to the boards of the others.
"""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from stayfast.core.clock import Clock, Rng
from stayfast.core.engine_signals import EngineSignals
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.observe.snapshot.engine_scraper import SCRAPE_EVERY_S, EngineScraper
from stayfast.settings import EmbeddedUpstream, HttpUpstream, Settings, Upstream
from stayfast.upstreams.embedded import EngineEndpoint
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.workers.channels import WorkerPeers

TIMEOUT_S = 2.5  # SGLang's health endpoint needs 2 s; its metrics share the same threads
MAX_PAGE_BYTES = 8 << 20
_OK = 200


class SignalPublisher:
    """Gives the readings of this worker's scrapers to the boards of all workers. For one event loop."""

    __slots__ = ("_encode", "_peers", "board")

    def __init__(self, board: SignalBoard, peers: WorkerPeers, encode: Callable[[bytes], bytes]) -> None:
        """encode: makes a message for other workers, which pass its content to their `receive`."""
        self.board = board
        self._peers = peers
        self._encode = encode

    async def publish(self, upstream: str, signals: EngineSignals) -> None:
        """A reading, for this worker at once, and for the others as soon as they reply. Their clocks are the same."""
        self.board.publish(upstream, signals)
        if self._peers.others:
            await self._peers.query(self._encode(msgspec.msgpack.encode({upstream: signals})))

    def receive(self, message: bytes) -> None:
        """Readings of another worker."""
        for upstream, signals in msgspec.msgpack.decode(message, type=dict[str, EngineSignals]).items():
            self.board.publish(upstream, signals)


def publish_alone() -> SignalPublisher:
    """For a worker without others, whose engines are not read."""
    return SignalPublisher(SignalBoard(SCRAPE_EVERY_S), WorkerPeers(), bytes)


def is_scraped(upstream: Upstream) -> bool:
    """Whether the metrics of an upstream are read."""
    return isinstance(upstream, EmbeddedUpstream) or (
        isinstance(upstream, HttpUpstream) and upstream.engine_metrics != "off")


def make_scrapers(settings: Settings, doors: Mapping[str, EngineEndpoint], publisher: SignalPublisher, *,
                  count_queued: Callable[[str], int], clock: Clock, rng: Rng) -> dict[str, EngineScraper]:
    """By upstream. doors: of embedded engines. count_queued: requests that wait in the gateway for an upstream. All read at
    the board's interval, also after a reload with another one: it says for how long readings count.
    """
    scrapers: dict[str, EngineScraper] = {}
    publisher.board.keep_only(settings.upstreams)
    for name, upstream in settings.upstreams.items():
        publish, queued = partial(publisher.publish, name), partial(count_queued, name)
        if isinstance(upstream, HttpUpstream) and upstream.engine_metrics != "off":
            kind = None if upstream.engine_metrics == "auto" else upstream.engine_metrics
            scrapers[name] = EngineScraper(kind, EnginePageClient(name, upstream, clock), clock, rng, publish=publish,
                                           count_queued=queued, interval_s=publisher.board.interval_s)
        elif isinstance(upstream, EmbeddedUpstream) and name in doors:
            scrapers[name] = EngineScraper("llamacpp", EmbeddedPageClient(name, doors[name], clock), clock, rng,
                                           publish=publish, count_queued=queued,
                                           interval_s=publisher.board.interval_s)
    return scrapers


def open_engine_client(name: str, upstream: HttpUpstream, clock: Clock, root: str = ""
                       ) -> tuple[HttpClient, list[tuple[str, str]]]:
    """A client for the endpoints at `root` (empty: the root of the upstream's base URL), and the headers with its key. Its
    connections are its own, and appear in no metric.
    """
    config = HttpConfig(root or upstream.base_url.removesuffix("/v1"), max_connections=1, http="1.1",
                        ca_file=upstream.ca_file, verify=upstream.verify)
    client = HttpClient(name, config, sink=Fanout(), clock=clock)
    headers = [("accept-encoding", "identity"),
               *[(header.lower(), value.reveal()) for header, value in upstream.headers.items()]]
    if upstream.key is not None:
        header, key = upstream.key_header.lower() or "authorization", upstream.key.reveal()
        headers.append((header, f"Bearer {key}" if header == "authorization" else key))
    return client, headers


class EnginePageClient:
    """Fetches an engine's page of metrics."""

    def __init__(self, name: str, upstream: HttpUpstream, clock: Clock) -> None:
        self._client, headers = open_engine_client(name, upstream, clock, upstream.metrics_url)
        self._headers = [("accept", "text/plain"), *headers]

    async def fetch(self, path: str) -> str | None:
        """The page; None: there is none. Its absence shows in the age of the figures."""
        return await _fetch(self._client, path, self._headers)

    def close(self) -> None:
        self._client.close()


class EmbeddedPageClient:
    """Fetches pages of an embedded engine, at the address that it has now."""

    def __init__(self, name: str, door: EngineEndpoint, clock: Clock) -> None:
        self._name = name
        self._door = door
        self._clock = clock
        self._client: HttpClient | None = None
        self._root = ""

    async def fetch(self, path: str) -> str | None:
        """The page; None: the engine is not running."""
        address = self._door.address if self._door.is_ready else None
        if address is None:
            return None
        root = f"http://{address[0]}:{address[1]}"
        if self._client is None or root != self._root:
            self.close()
            self._client, self._root = HttpClient(self._name, HttpConfig(root, max_connections=1, http="1.1"), sink=Fanout(),
                                                  clock=self._clock), root
        return await _fetch(self._client, path, [("accept-encoding", "identity")])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


async def _fetch(client: HttpClient, path: str, headers: list[tuple[str, str]]) -> str | None:
    try:
        page = await client.fetch("GET", f"{client.base_path}{path}", headers, timeout_s=TIMEOUT_S,
                                  max_body_bytes=MAX_PAGE_BYTES)
    except StayfastError:
        return None
    return page.body.decode("utf-8", "replace") if page.status == _OK else None
