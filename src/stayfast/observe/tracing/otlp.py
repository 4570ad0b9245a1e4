"""OTLP over HTTP, with bodies in protobuf (https://opentelemetry.io/docs/specs/otlp/). Imported only where tracing is on."""

import http.client
import ssl
from collections.abc import Mapping, Sequence
from random import Random
from urllib.parse import urlsplit
from uuid import UUID

from stayfast.core.events import RequestDone
from stayfast.observe.tracing.config import Peer, TraceConfig
from stayfast.observe.tracing.exporter import Verdict
from stayfast.observe.tracing.spans import Spans

_CAN_RETRY = (429, 502, 503, 504)  # by the specification; any other refusal is for good
_MAX_ANSWER_BYTES = 64 * 1024


class OtlpExporter:
    """Encodes and sends. One thread's; the connection is kept between batches."""

    def __init__(self, config: TraceConfig, version: str, rng: Random) -> None:
        about = {
            "service.name": config.service_name, "service.version": version,
            "service.instance.id": str(UUID(int=rng.getrandbits(128), version=4)),
            "telemetry.sdk.name": "stayfast", "telemetry.sdk.language": "python", "telemetry.sdk.version": version,
        }
        self._spans = Spans(about, version, rng)
        self._headers = {"content-type": "application/x-protobuf", "user-agent": f"stayfast/{version}", **config.headers}
        parts = urlsplit(config.url)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        host = parts.hostname or ""
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, parts.port, timeout=config.timeout_s, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, parts.port, timeout=config.timeout_s)
        self._is_open = False

    def encode(self, requests: Sequence[RequestDone], peers: Mapping[str, Peer]) -> bytes:
        """One message; several may be joined end to end."""
        return self._spans.encode(requests, peers)

    def send(self, body: bytes) -> Verdict:
        """Post a message. Never raises."""
        was_open = self._is_open
        verdict = self._post(body)
        if was_open and verdict.status is None:  # what was kept open may have been closed at the other end
            verdict = self._post(body)
        return verdict

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._is_open = False

    def _post(self, body: bytes) -> Verdict:
        try:
            self._connection.request("POST", self._target, body, self._headers)
            response = self._connection.getresponse()
            response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Verdict(can_retry=True, reason=type(error).__name__)
        self._is_open = response.isclosed() and not response.will_close
        if not self._is_open:
            self.close()
        status = response.status
        if 200 <= status < 300:
            return Verdict(status, is_taken=True)
        return Verdict(status, can_retry=status in _CAN_RETRY, reason=f"HTTP {status}",
                       retry_after_s=_seconds(response.headers.get("retry-after")))


def _seconds(retry_after: str | None) -> float | None:
    """Only the form in seconds is read: the one with a date is rare, and waiting as long as usual will do."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else None
