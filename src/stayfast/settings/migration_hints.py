"""Hints for keys and words of other gateways' settings and SDKs: for `api_base`, write `base_url`.

The tables are used for unknown keys only, so they never reject a valid setting. `foreign_reference` does reject: no API key
looks like a reference to a variable.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from stayfast.core.units import parse_duration
from stayfast.settings.problems import Path
from stayfast.settings.providers import PROTOCOLS, all_providers

ANY: Final = "*"  # in a path: any name, or any position in a list
_UPSTREAM, _ROUTE, _DEFAULTS, _TOP = ("upstreams", ANY), ("routes", ANY), ("defaults",), ()

_FALLBACK = "for fallbacks write `fallback: [NAME]`"
_TIME = "in seconds: `deadline: 30` for the whole request, `timeouts: {first_token_s: 10, idle_s: 30}` for single waits"
_RETRY = "write `retry: {max_attempts: 3}`, the first attempt included"
_ROUTES = ("write providers as `upstreams: {NAME: {provider: openai, key: ...}}` and the `model` of clients as "
           "`routes: {MODEL: [NAME]}`")
_KEYS = "write client keys as `server: {keys: {CLIENT: sha256:...}}`; `stayfast key CLIENT` makes one"
_AZURE = ("Azure is `provider: azure` with `resource: NAME`, without api-version; the deployment is the model; with "
          "api-version: `paths` in docs/providers.md")
_PROVIDER = "write `provider: openai`, or another name of docs/providers.md; `kind` is a protocol"
_LIMIT = "write `limit: {mode: fixed, max: 100}` for a concurrency limit"
_WEIGHT = "weights are set at the route: `weights: {NAME: 2}`"
_LOG = "write `log: {level: info}`"
_BASE_URL = "write `base_url: https://HOST/v1`"
_MODELS = "write `models: {ROUTE: NAME}`, the name of the route and the model's name at this upstream"

# Section, foreign keys, and what to write instead.
_KEY_HINTS: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (_TOP, "model_list models provider providers targets endpoints litellm_params virtual_keys", _ROUTES),
    (_TOP, "model route", "write `routes: {MODEL: [NAME OF AN UPSTREAM]}`"),
    (_TOP, "litellm_settings router_settings general_settings strategy",
     "write common settings in `defaults`: timeouts, retry, hedge, limit, breaker, on_overrun"),
    (_TOP, "environment_variables env", 'write values from the environment as "${NAME}" where they are needed'),
    (_TOP, "master_key api_key api_keys keys auth", _KEYS),
    (_TOP, "fallback fallbacks",
     f"at a route: {_FALLBACK}; for all routes `defaults: {{on_overrun: {{fallback: [NAME]}}}}`"),
    (_TOP, "timeout request_timeout deadline",
     f"at a route: {_TIME}; for all routes `defaults: {{timeouts: {{total_s: 30}}}}`"),
    (_TOP, "num_retries max_retries retries", f"at a route, or below `defaults`: {_RETRY}"),
    (_TOP, "cache caching cache_params", "caches are set at a route: `cache: {mode: exact}`"),
    (_TOP, "logging log_level set_verbose", _LOG),
    (_TOP, "num_workers worker", "write `workers: 2`"),
    (_TOP, "bind address listen", "write `server: {host: 127.0.0.1, port: 8090}`"),
    (("server",), "bind address listen", "write `host: 127.0.0.1` and `port: 8090`"),
    (("server",), "master_key api_key api_keys token", _KEYS),
    (("server",), "timeout request_timeout",
     "time limits of calls are set at a route or in `defaults`: `timeouts: {total_s: 30}`"),
    (_UPSTREAM, "api_base base url api_url endpoint openai_api_base azure_endpoint host", _BASE_URL),
    (_UPSTREAM, "api_key apikey token auth virtual_key openai_api_key", 'write `key: "${OPENAI_API_KEY}"`'),
    (_UPSTREAM, "type custom_llm_provider llm_provider", _PROVIDER),
    (_UPSTREAM, "aws_region_name vertex_location location", "with `provider: bedrock` or `vertex`: `region: NAME`"),
    (_UPSTREAM, "vertex_project", "with `provider: vertex`: `project: NAME`"),
    (_UPSTREAM, "model_name deployment deployment_id litellm_params override_params", _MODELS),
    (_UPSTREAM, "api_version azure_deployment", _AZURE),
    (_UPSTREAM, "timeout request_timeout stream_timeout deadline", f"at the route: {_TIME}"),
    (_UPSTREAM, "num_retries max_retries retries", f"at the route: {_RETRY}"),
    (_UPSTREAM, "fallback fallbacks", f"at the route: {_FALLBACK}"),
    (_UPSTREAM, "weight", _WEIGHT),
    (_UPSTREAM, "max_parallel_requests max_concurrency concurrency", _LIMIT),
    (_UPSTREAM, "rpm tpm", f"rate limits are learned from the upstream's 429s; {_LIMIT}"),
    (_UPSTREAM, "extra_headers custom_headers default_headers", "write `headers: {NAME: VALUE}`"),
    (_UPSTREAM, "input_cost_per_token output_cost_per_token price pricing cost",
     "write `prices: {MODEL: {input_per_mtok: 2.5, output_per_mtok: 10}}`, in USD for a million tokens"),
    (_UPSTREAM, "ssl_verify verify_ssl", "write `verify: false`"),
    (_UPSTREAM, "http_version http2", 'write `http: "2"`'),
    (_ROUTE, "fallbacks", _FALLBACK),
    (_ROUTE, "timeout request_timeout timeout_s total_s stream_timeout deadline_s deadline_ms", _TIME),
    (_ROUTE, "num_retries max_retries retries max_attempts", _RETRY),
    (_ROUTE, "targets providers deployments upstream provider", "write `upstreams: [NAME]`"),
    (_ROUTE, "strategy routing routing_strategy mode",
     "write `pick: balance` (the less busy one) or `pick: order` (the first healthy one)"),
    (_ROUTE, "weight", _WEIGHT),
    (_ROUTE, "model_name alias", "the route's name is what clients send; `model: NAME` is the upstreams' name for it"),
    (_DEFAULTS, "fallback fallbacks", "write `on_overrun: {fallback: [NAME]}`"),
    (_DEFAULTS, "timeout request_timeout deadline", "write `timeouts: {total_s: 30}`, in seconds"),
    (_DEFAULTS, "num_retries max_retries retries", _RETRY),
)
KEY_HINTS: Final[Mapping[tuple[str, ...], str]] = {
    (*where, name): text for where, names, text in _KEY_HINTS for name in names.split()}

# Names of other gateways for the providers of providers.json.
_FOREIGN_PROVIDERS: Final = """\
azure: azure_openai azure_ai azureopenai azure_text
azure-anthropic: foundry anthropic_foundry
bedrock: aws aws_bedrock amazon_bedrock bedrock_converse
gemini: google google_gemini google_ai_studio genai
vertex: vertex_ai vertexai google_vertex
anthropic: claude messages
xai: grok x_ai
together: together_ai togetherai
fireworks: fireworks_ai
perplexity: perplexity_ai
nvidia: nvidia_nim nim
moonshot: moonshotai kimi
github: github_models
cloudflare: workers_ai cloudflare_workers_ai
ollama: ollama_chat
lmstudio: lm_studio
vllm: hosted_vllm
llamacpp: llama_cpp llama_server llamafile
tgi: text_generation_inference huggingface_tgi
trtllm: tensorrt_llm trtllm_serve
litellm: litellm_proxy
"""
KIND_HINTS: Final[Mapping[str, str]] = {
    **{foreign: f"write provider: {name}" for name, others in (line.split(": ") for line in _FOREIGN_PROVIDERS.splitlines())
       for foreign in others.split()},
    **dict.fromkeys(("gpt", "chatgpt", "openai_compatible", "custom", "openai_like", "text_completion_openai"),
                    "write kind: openai with its base_url"),
    **dict.fromkeys(("gguf", "local", "builtin"), "write kind: embedded with model: PATH of a GGUF file"),
}


def key_hint(path: Path, table: Mapping[tuple[str, ...], str]) -> str | None:
    """What to write instead of an unknown key; None if there is no hint."""
    name = str(path[-1]).lower().replace("-", "_")
    return match_path((*path[:-1], name), table)


def match_path(path: Path, table: Mapping[tuple[str, ...], str]) -> str | None:
    """The text of the first pattern that matches the path."""
    for pattern, text in table.items():
        if len(pattern) == len(path) and all(step in (ANY, name) for step, name in zip(pattern, path, strict=True)):
            return text
    return None


def kind_hint(path: Path, word: str) -> str | None:
    """What to write instead of an unknown kind or provider of an upstream."""
    if match_path(path, {(*_UPSTREAM, "kind"): "yes", (*_UPSTREAM, "provider"): "yes"}) is None:
        return None
    hint = KIND_HINTS.get(re.sub(r"[ .-]", "_", word.lower()))
    if hint is None and path[-1] == "kind":
        near = get_close_matches(word.lower(), [*PROTOCOLS, "embedded", *all_providers()], n=1, cutoff=0.6)
        hint = f"write provider: {near[0]}" if near and near[0] not in (*PROTOCOLS, "embedded") else None
    return hint


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG])(i?)B?", re.IGNORECASE)
_SPELT = ((re.compile(r"(?<=\d) ?(?:s|secs?|seconds?)\b"), "s"), (re.compile(r"(?<=\d) ?(?:m|mins?|minutes?)\b"), "m"),
          (re.compile(r"(?<=\d) ?(?:h|hours?)\b"), "h"), (re.compile(r"(?<=\d) ?(?:ms|millis|milliseconds?)\b"), "ms"))
_FOREIGN_REFERENCE = re.compile(r"(?:Bearer )?(?:os\.environ/|env\.|env:|\$|\{\{ ?)([A-Z_][A-Z0-9_]*)(?: ?\}\})?")


def number_hint(path: Path, text: str, maximum: float | None) -> str | None:
    """The number to write for a quantity with a unit (`30s`, `1MiB`, `5%`), if the setting's unit is known."""
    name = str(path[-1])
    for read in (_in_seconds, _in_milliseconds, _in_bytes):
        value = read(name, text.strip())
        if value is not None:
            return f"write {value[0]:.15g}, in {value[1]}"
    if maximum == 1 and re.fullmatch(r"\d+(\.\d+)? ?%", text):
        return f"write {float(text.rstrip('% ')) / 100:.15g}, a share of 1"
    return None


def _parse_seconds(text: str) -> float | None:
    for spelt, unit in _SPELT:
        text = spelt.sub(unit, text)
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _in_seconds(name: str, text: str) -> tuple[float, str] | None:
    found = _parse_seconds(text) if name.endswith("_s") or name == "deadline" else None
    return (found, "seconds") if found is not None else None


def _in_milliseconds(name: str, text: str) -> tuple[float, str] | None:
    found = _parse_seconds(text) if name.endswith("_ms") else None
    return (found * 1e3, "milliseconds") if found is not None else None


def _in_bytes(name: str, text: str) -> tuple[float, str] | None:
    found = _SIZE.fullmatch(text) if name.endswith("_bytes") else None
    if found is None:
        return None
    return round(float(found[1]) * 1024 ** ("KMG".index(found[2].upper()) + 1)), "bytes"


def foreign_reference(text: str) -> str | None:
    """The error for a secret that looks like another tool's reference: os.environ/NAME, $NAME, env.NAME."""
    found = _FOREIGN_REFERENCE.fullmatch(text)
    return f"would be sent literally; write an environment variable as ${{{found[1]}}}" if found else None


