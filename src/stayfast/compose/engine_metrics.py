"""Scrapers of the engines that the settings name (`engine_metrics`)."""

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.observe.snapshot.engine_scraper import EngineScraper
from stayfast.settings import HttpUpstream, Settings

TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 8 << 20
_OK = 200


def make_scrapers(settings: Settings, clock: Clock) -> dict[str, EngineScraper]:
    """By upstream."""
    return {name: EngineScraper(None if upstream.engine_metrics == "auto" else upstream.engine_metrics,
                                EnginePageClient(name, upstream, clock), clock)
            for name, upstream in settings.upstreams.items()
            if isinstance(upstream, HttpUpstream) and upstream.engine_metrics != "off"}


def open_engine_client(name: str, upstream: HttpUpstream, clock: Clock) -> tuple[HttpClient, list[tuple[str, str]]]:
    """A client for the endpoints at the root of an upstream's base URL, and the headers with the upstream's key. Its
    connections are its own, and appear in no metric.
    """
    root = upstream.base_url.removesuffix("/v1")
    client = HttpClient(name, HttpConfig(root, max_connections=1, http="1.1", ca_file=upstream.ca_file,
                                         verify=upstream.verify), sink=Fanout(), clock=clock)
    headers = [("accept-encoding", "identity"),
               *[(header.lower(), value.reveal()) for header, value in upstream.headers.items()]]
    if upstream.key is not None:
        header, key = upstream.key_header.lower() or "authorization", upstream.key.reveal()
        headers.append((header, f"Bearer {key}" if header == "authorization" else key))
    return client, headers


class EnginePageClient:
    """Fetches an engine's page of metrics."""

    def __init__(self, name: str, upstream: HttpUpstream, clock: Clock) -> None:
        self._client, headers = open_engine_client(name, upstream, clock)
        self._headers = [("accept", "text/plain"), *headers]

    async def fetch(self) -> str | None:
        """The page; None: there is none. Its absence shows in the age of the figures."""
        client = self._client
        try:
            page = await client.fetch("GET", f"{client.base_path}/metrics", self._headers, timeout_s=TIMEOUT_S,
                                      max_body_bytes=MAX_PAGE_BYTES)
        except StayfastError:
            return None
        return page.body.decode("utf-8", "replace") if page.status == _OK else None

    def close(self) -> None:
        self._client.close()
