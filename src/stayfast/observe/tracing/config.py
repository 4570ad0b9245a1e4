"""Settings of tracing: where spans go, and of how many requests.

What OpenTelemetry calls things: operations, providers, paths (semantic conventions of HTTP and GenAI, autumn 2026).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from stayfast.core.events import AttemptDone
from stayfast.core.types import Api

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


OPERATIONS: Mapping[Api, str] = {
    Api.CHAT: "chat", Api.MESSAGES: "chat", Api.RESPONSES: "chat", Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings", Api.COUNT_TOKENS: "count_tokens",  # the last one is ours: there is no word for it
}
INVOKE_AGENT = "invoke_agent"  # a turn that is served as a model
STEPS: Mapping[str, str] = {"tool": "execute_tool", "retrieval": "retrieval"}  # of turns, by their kind
PATHS: Mapping[Api, str] = {
    Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions", Api.EMBEDDINGS: "/v1/embeddings",
    Api.RESPONSES: "/v1/responses", Api.MESSAGES: "/v1/messages", Api.COUNT_TOKENS: "/v1/messages/count_tokens",
}
_BY_HOST = (  # hosts, and domains of which any host is meant
    ("api.openai.com", "openai"), ("api.anthropic.com", "anthropic"), ("openai.azure.com", "azure.ai.openai"),
    ("services.ai.azure.com", "azure.ai.inference"), ("amazonaws.com", "aws.bedrock"), ("api.aws", "aws.bedrock"),
    ("generativelanguage.googleapis.com", "gcp.gemini"), ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.cohere.com", "cohere"), ("api.cohere.ai", "cohere"), ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"), ("api.mistral.ai", "mistral_ai"), ("api.moonshot.ai", "moonshot_ai"),
    ("api.moonshot.cn", "moonshot_ai"), ("api.perplexity.ai", "perplexity"), ("api.x.ai", "x_ai"),
    ("ml.cloud.ibm.com", "ibm.watsonx.ai"),
)


def is_turn(done: AttemptDone) -> bool:
    """Whether a turn of the operator's own answered, not a model."""
    return done.kind == "turn"


class Peer(msgspec.Struct, frozen=True):
    """Who stands behind an upstream, and where."""

    provider: str
    host: str | None = None
    port: int | None = None


def provider_of(kind: str, host: str) -> str:
    """`gen_ai.provider.name`: by the host where that is a known provider's, else the kind, which names the protocol."""
    return next((provider for known, provider in _BY_HOST if host == known or host.endswith(f".{known}")), kind)
