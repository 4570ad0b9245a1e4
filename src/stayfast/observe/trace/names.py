"""What OpenTelemetry calls things: operations, providers, paths (semantic conventions of HTTP and GenAI, autumn 2026)."""

from collections.abc import Mapping

import msgspec

from stayfast.core.types import Api

OPERATIONS: Mapping[Api, str] = {
    Api.CHAT: "chat", Api.MESSAGES: "chat", Api.RESPONSES: "chat", Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings", Api.COUNT_TOKENS: "count_tokens",  # the last one is ours: there is no word for it
}
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


class Peer(msgspec.Struct, frozen=True):
    """Who stands behind an upstream, and where."""

    provider: str
    host: str | None = None
    port: int | None = None


def provider_of(kind: str, host: str) -> str:
    """`gen_ai.provider.name`: by the host where that is a known provider's, else the kind, which names the protocol."""
    return next((provider for known, provider in _BY_HOST if host == known or host.endswith(f".{known}")), kind)
