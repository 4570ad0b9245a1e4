"""LiteLLM's providers and ours: from the prefix of `model` to an upstream.

A provider that speaks OpenAI's protocol at an address of its own is taken as that, if the file gives the address. What has a
protocol of its own that Stayfast does not speak is not taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import fullmatch
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """One prefix of LiteLLM. `provider`: ours; `variable`: the key's usual variable there, empty: none; `needs`: the fields
    of the address, with LiteLLM's variable for each. `is_own`: an engine of your own, which has no common address.
    """

    provider: str
    variable: str = ""
    needs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    is_own: bool = False
    default_url: str = ""


_AWS = MappingProxyType({"region": "AWS_REGION"})
_GOOGLE = MappingProxyType({"project": "VERTEXAI_PROJECT", "region": "VERTEXAI_LOCATION"})
PREFIXES: Final[Mapping[str, PrefixRow]] = MappingProxyType({
    "openai": PrefixRow("openai", "OPENAI_API_KEY"),
    "text-completion-openai": PrefixRow("openai", "OPENAI_API_KEY"),
    "custom_openai": PrefixRow("openai", "OPENAI_API_KEY", is_own=True),
    "openai_like": PrefixRow("openai", "OPENAI_LIKE_API_KEY", is_own=True),
    "azure": PrefixRow("azure", "AZURE_API_KEY"),
    "azure_text": PrefixRow("azure", "AZURE_API_KEY"),
    "azure_ai": PrefixRow("azure", "AZURE_AI_API_KEY"),
    "anthropic": PrefixRow("anthropic", "ANTHROPIC_API_KEY"),
    "bedrock": PrefixRow("bedrock", needs=_AWS),
    "bedrock_converse": PrefixRow("bedrock", needs=_AWS),
    "vertex_ai": PrefixRow("vertex", needs=_GOOGLE),
    "vertex_ai_beta": PrefixRow("vertex", needs=_GOOGLE),
    "gemini": PrefixRow("gemini", "GEMINI_API_KEY"),
    "xai": PrefixRow("xai", "XAI_API_KEY"),
    "groq": PrefixRow("groq", "GROQ_API_KEY"),
    "mistral": PrefixRow("mistral", "MISTRAL_API_KEY"),
    "deepseek": PrefixRow("deepseek", "DEEPSEEK_API_KEY"),
    "openrouter": PrefixRow("openrouter", "OPENROUTER_API_KEY"),
    "together_ai": PrefixRow("together", "TOGETHERAI_API_KEY"),
    "fireworks_ai": PrefixRow("fireworks", "FIREWORKS_AI_API_KEY"),
    "cerebras": PrefixRow("cerebras", "CEREBRAS_API_KEY"),
    "sambanova": PrefixRow("sambanova", "SAMBANOVA_API_KEY"),
    "perplexity": PrefixRow("perplexity", "PERPLEXITYAI_API_KEY"),
    "nvidia_nim": PrefixRow("nvidia", "NVIDIA_NIM_API_KEY"),
    "nebius": PrefixRow("nebius", "NEBIUS_API_KEY"),
    "hyperbolic": PrefixRow("hyperbolic", "HYPERBOLIC_API_KEY"),
    "moonshot": PrefixRow("moonshot", "MOONSHOT_API_KEY"),
    "github": PrefixRow("github", "GITHUB_API_KEY"),
    "cloudflare": PrefixRow("cloudflare", "CLOUDFLARE_API_KEY",
                              MappingProxyType({"account": "CLOUDFLARE_ACCOUNT_ID"})),
    "databricks": PrefixRow("databricks", "DATABRICKS_API_KEY", is_own=True),
    "litellm_proxy": PrefixRow("litellm", "LITELLM_PROXY_API_KEY", is_own=True),
    "hosted_vllm": PrefixRow("vllm", "HOSTED_VLLM_API_KEY:-", is_own=True),
    "ollama": PrefixRow("ollama", is_own=True, default_url="http://127.0.0.1:11434/v1"),
    "ollama_chat": PrefixRow("ollama", is_own=True, default_url="http://127.0.0.1:11434/v1"),
    "lm_studio": PrefixRow("lmstudio", is_own=True, default_url="http://127.0.0.1:1234/v1"),
    "llamafile": PrefixRow("llamacpp", is_own=True, default_url="http://127.0.0.1:8080/v1"),
})
# Prefixes with OpenAI's protocol at an address that is not in our table: taken if the file has `api_base`.
SPEAK_OPENAI: Final = frozenset({
    "ai21_chat", "aiml", "anyscale", "baseten", "codestral", "cometapi", "compactifai", "dashscope", "deepinfra",
    "docker_model_runner", "empower", "featherless_ai", "friendliai", "galadriel", "heroku", "inception", "infinity",
    "lambda_ai", "lemonade", "meta_llama", "modelscope", "morph", "novita", "nscale", "publicai", "synthetic", "v0",
    "vercel_ai_gateway", "volcengine", "wandb", "xinference", "zai",
})
# Prefixes with a protocol of their own, or with one that Stayfast does not speak.
FOREIGN: Final = frozenset({
    "ai21", "aleph_alpha", "assemblyai", "auto_router", "aws_polly", "bedrock_mantle", "black_forest_labs", "bytez",
    "chatgpt", "clarifai", "cohere", "cohere_chat", "custom", "dataforseo", "deepgram", "elevenlabs", "fal_ai",
    "gigachat", "github_copilot", "gradient_ai", "huggingface", "jina_ai", "langgraph", "maritalk", "nlp_cloud", "oci",
    "oobabooga", "palm", "petals", "predibase", "recraft", "replicate", "runwayml", "sagemaker", "sagemaker_chat",
    "sagemaker_nova", "sap", "snowflake", "stability", "text-completion-codestral", "topaz", "triton", "vllm", "voyage",
    "watsonx", "watsonx_text",
})

_BY_NAME = ((r"(gpt|chatgpt|o\d|text-embedding|davinci|babbage|omni-moderation|dall-e|whisper|tts)\b.*", "openai"),
            (r"claude.*", "anthropic"), (r"gemini-.*", "vertex_ai"))
_BEDROCK_ROUTES = ("converse", "invoke", "converse_like")
_BEDROCK_OTHERS = ("agent", "agentcore", "async_invoke", "batch", "mantle")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A provider's row, and the model's name there. `region`: one that the name contains. `why_not`: why it is not taken.
    `note`: what was assumed.
    """

    row: PrefixRow
    prefix: str
    model: str
    region: str = ""
    note: str = ""
    why_not: str = ""


def find_provider(model: str, stated: str | None, *, has_address: bool) -> NamedModel:
    """The provider of `litellm_params.model`. stated: custom_llm_provider. has_address: whether there is an api_base."""
    prefix, slash, name = model.partition("/")
    if stated is not None:
        prefix, name = stated, name if slash and prefix == stated else model
    elif not slash or (prefix not in PREFIXES and prefix not in SPEAK_OPENAI and prefix not in FOREIGN):
        return _guess(model, prefix if slash else "", has_address=has_address)
    if prefix in PREFIXES:
        return _refine(NamedModel(PREFIXES[prefix], prefix, name))
    if prefix in SPEAK_OPENAI and has_address:
        return NamedModel(PrefixRow("openai", is_own=True), prefix, name, note=f"taken as OpenAI's protocol ({prefix})")
    why = f"the provider {prefix} is not supported"
    if prefix in SPEAK_OPENAI:
        why += "; it has OpenAI's protocol: write an upstream of kind openai with its base_url"
    return NamedModel(PrefixRow(""), prefix, name, why_not=why)


def _guess(model: str, prefix: str, *, has_address: bool) -> NamedModel:
    """A model without a known prefix: LiteLLM finds the provider by the model's name."""
    for pattern, known in () if prefix else _BY_NAME:
        if fullmatch(pattern, model):
            return _refine(NamedModel(PREFIXES[known], known, model))
    if has_address or model == "*":
        return NamedModel(PREFIXES["openai"], "openai", model, note="without a prefix: taken as OpenAI's protocol")
    why = f"{prefix}/ is no provider that the import knows" if prefix else "without a provider's prefix, and no known model"
    return NamedModel(PrefixRow(""), prefix, model, why_not=why)


def _refine(found: NamedModel) -> NamedModel:
    """Another of our providers for some families of models at one of theirs."""
    row, model = found.row, found.model
    if found.prefix.startswith("bedrock"):
        return _read_bedrock(found)
    if row.provider == "vertex":
        return _read_vertex(found)
    if found.prefix == "azure_ai" and model.startswith("claude"):
        return NamedModel(PrefixRow("azure-anthropic", row.variable), found.prefix, model)
    if found.prefix == "azure":  # LiteLLM's marks of a protocol, not part of a deployment's name
        for mark in ("responses/", "o_series/", "gpt5_series/"):
            model = model.removeprefix(mark)
    if found.prefix == "openai":
        model = model.removeprefix("responses/")
    return NamedModel(row, found.prefix, model)


def _read_bedrock(found: NamedModel) -> NamedModel:
    first, slash, rest = found.model.partition("/")
    region = ""
    if slash and first in _BEDROCK_ROUTES:
        first, slash, rest, model = *rest.partition("/"), rest
    else:
        model = found.model
    if slash and first in _BEDROCK_OTHERS:
        return NamedModel(found.row, found.prefix, model, why_not=f"bedrock/{first} has a protocol that is not supported")
    if slash and fullmatch(r"[a-z]{2}(-[a-z]+)+-\d", first):
        region, model = first, rest
    return NamedModel(found.row, found.prefix, model, region)


def _read_vertex(found: NamedModel) -> NamedModel:
    model, row = found.model, found.row
    model = model.removeprefix("gemini/")
    if model.startswith("claude"):
        return NamedModel(PrefixRow("vertex-anthropic", needs=row.needs), found.prefix, model)
    if model.startswith("gemini") or model == "*":
        return NamedModel(row, found.prefix, model)
    if "/" in model:  # meta/llama-...-maas and others, at the OpenAI-compatible address
        return NamedModel(PrefixRow("vertex-openai", needs=row.needs), found.prefix, model.removeprefix("openai/"))
    return NamedModel(row, found.prefix, model, why_not="this model of Vertex AI has a protocol that is not supported")


def azure_resource(api_base: str, *, is_anthropic: bool) -> str:
    """The name of the resource in an address of Azure; empty if it is not a plain one."""
    host = urlsplit(api_base).hostname or ""
    pattern = r"([a-z0-9-]+)\.services\.ai\.azure\.com" if is_anthropic else r"([a-z0-9-]+)\.openai\.azure\.com"
    found = fullmatch(pattern, host)
    return found.group(1) if found is not None else ""
