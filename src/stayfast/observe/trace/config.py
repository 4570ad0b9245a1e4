"""Settings of tracing: where spans go, and of how many requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

ENDPOINT = "http://127.0.0.1:4318"  # where collectors listen for OTLP over HTTP
_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """How to export. `headers` hold keys: never in reprs, logs or errors. `endpoint` may end before /v1/traces."""

    endpoint: str = ENDPOINT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sample: float = 1.0  # of the requests whose caller has not decided already, the share that is traced
    timeout_s: float = 10.0  # for one batch; OpenTelemetry's own default
    service_name: str = "stayfast"
    flush_every_s: float = 0.5
    max_pending: int = 8192  # requests that wait to be exported, of about 3 KB each; beyond it the oldest are dropped

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.endpoint)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or "@" in self.endpoint or not self.endpoint.isascii() or any(char <= " " for char in self.endpoint):
            raise ValueError("endpoint must be like http://host:4318, without user and password")
        for name, low, high in (("sample", 0, 1), ("timeout_s", 0.1, 600), ("flush_every_s", 0.01, 60),
                                ("max_pending", 1, 1_000_000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")

    @property
    def url(self) -> str:
        """The full address of the endpoint for traces."""
        base = self.endpoint.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH


def why_not_otlp() -> str | None:
    """Why spans cannot be exported here; None when they can."""
    try:
        found = find_spec("opentelemetry.proto.trace.v1.trace_pb2")
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return None
    return "needs packages that are not installed: pip install '.[otel]' in Stayfast's checkout"
