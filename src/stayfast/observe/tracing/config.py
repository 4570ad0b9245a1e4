"""Configuration of tracing, and OpenTelemetry's names: operations, providers, paths, error types (semantic conventions of
HTTP and GenAI, autumn 2026).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from stayfast.core.events import AttemptDone
from stayfast.core.types import COUNT_APIS, Api, Outcome

ENDPOINT = "http://127.0.0.1:4318"  # default port of OTLP over HTTP
_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """How to export. `headers` may hold keys: never in reprs, logs or errors. `endpoint`: /v1/traces is optional."""

    endpoint: str = ENDPOINT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sample: float = 1.0  # share of traced requests, unless the caller has decided
    timeout_s: float = 10.0  # per batch; OpenTelemetry's default
    service_name: str = "stayfast"
    flush_every_s: float = 0.5
    max_pending: int = 8192  # requests waiting for export, about 3 KB each; beyond it the oldest are dropped

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
        base = self.endpoint.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH


def otlp_problem() -> str | None:
    """Why spans cannot be exported on this machine; None if they can."""
    try:
        found = find_spec("opentelemetry.proto.trace.v1.trace_pb2")
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return None
    return "needs packages that are not installed: pip install '.[otel]' in Stayfast's checkout"


OPERATIONS: Mapping[Api, str] = {
    Api.CHAT: "chat", Api.MESSAGES: "chat", Api.RESPONSES: "chat", Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
    Api.RERANK: "rerank", **dict.fromkeys(COUNT_APIS, "count_tokens"),  # not in the conventions
}
INVOKE_AGENT = "invoke_agent"  # a served turn
STEPS: Mapping[str, str] = {"tool": "execute_tool", "retrieval": "retrieval"}  # by kind of step
PATHS: Mapping[Api, str] = {
    Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions", Api.EMBEDDINGS: "/v1/embeddings",
    Api.RERANK: "/v1/rerank", Api.RESPONSES: "/v1/responses", Api.MESSAGES: "/v1/messages",
    Api.COUNT_TOKENS: "/v1/messages/count_tokens",
    Api.INPUT_TOKENS: "/v1/responses/input_tokens", Api.TOKENIZE: "/tokenize",
}
_BY_HOST = (  # hosts, and domains with all their hosts
    ("api.openai.com", "openai"), ("api.anthropic.com", "anthropic"), ("openai.azure.com", "azure.ai.openai"),
    ("services.ai.azure.com", "azure.ai.inference"), ("amazonaws.com", "aws.bedrock"), ("api.aws", "aws.bedrock"),
    ("generativelanguage.googleapis.com", "gcp.gemini"), ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.cohere.com", "cohere"), ("api.cohere.ai", "cohere"), ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"), ("api.mistral.ai", "mistral_ai"), ("api.moonshot.ai", "moonshot_ai"),
    ("api.moonshot.cn", "moonshot_ai"), ("api.perplexity.ai", "perplexity"), ("api.x.ai", "x_ai"),
    ("ml.cloud.ibm.com", "ibm.watsonx.ai"),
)


def is_turn(done: AttemptDone) -> bool:
    """Whether a served turn answered, not a model."""
    return done.kind == "turn"


class Peer(msgspec.Struct, frozen=True):
    """The provider of an upstream, and its address."""

    provider: str
    host: str | None = None
    port: int | None = None


def provider_name(kind: str, host: str) -> str:
    """`gen_ai.provider.name`: by the host if it is a known provider's, else the kind (or the provider in the settings)."""
    return next((provider for known, provider in _BY_HOST if host == known or host.endswith(f".{known}")), kind)


def error_type(done: AttemptDone) -> str | None:
    """`error.type` of a call to an upstream, in spans and metrics: the error status, the fault, or cancelled. None: it
    was answered, or another attempt was faster.
    """
    if done.outcome is Outcome.SUCCESS or (done.is_lost and done.fault is None):
        return None
    if done.fault == "status" and done.upstream_status is not None:
        return str(done.upstream_status)
    return done.fault or "cancelled"
