"""What people write who come from another gateway's settings, and what it is here.

Problem: `unknown setting` is true of `api_base`, and of no help to a reader who does not know that `base_url` is meant.
Rule: names and words that other gateways' files and SDKs use stand in the tables below with what to write instead. Only what
is refused anyway is looked up, so that a table never forbids anything; `foreign_reference` does, as no key looks like that.
"""

import re
from collections.abc import Mapping
from typing import Final

from stayfast.core.units import seconds_in
from stayfast.settings.problems import Path

ANY: Final = "*"  # in a path: any name, or any position in a list
_UPSTREAM, _ROUTE, _DEFAULTS, _TOP = ("upstreams", ANY), ("routes", ANY), ("defaults",), ()

_FALLBACK = "others that answer when these have failed are set by `on_overrun: {fallback: [NAME]}`"
_TIME = ("a whole request has `deadline: 30`, and single waits are in `timeouts: {first_token_s: 10, idle_s: 30}`, all in "
         "seconds")
_RETRY = "write `retry: {max_attempts: 3}`; the first attempt is counted too"
_ROUTES = ("name who can answer in `upstreams: {NAME: {kind: openai, base_url: ..., key: ...}}` and what clients send as "
           "`model` in `routes: {MODEL: [NAME]}`")
_KEYS = "keys of clients stand in `server: {keys: {CLIENT: sha256:...}}`; `stayfast key CLIENT` makes one"
_AZURE = ("Azure is kind: openai with base_url: https://RESOURCE.openai.azure.com/openai/v1 and "
          'headers: {api-key: "${AZURE_OPENAI_API_KEY}"}; that address takes no api-version, and a deployment is a model')
_LIMIT = "write `limit: {mode: fixed, max: 100}` for a number of requests at a time"
_WEIGHT = "weights stand at the route: `weights: {NAME: 2}`"
_LOG = "write `log: {level: info}`"
_BASE_URL = "write `base_url: https://HOST/v1`"
_MODELS = "write `models: {ROUTE: NAME}`, the name of the route and the model's name at this upstream"

# Where, the names that are written there, and what to write instead.
_KEY_HINTS: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (_TOP, "model_list models provider providers targets endpoints litellm_params virtual_keys", _ROUTES),
    (_TOP, "model route", "write `routes: {MODEL: [NAME OF AN UPSTREAM]}`"),
    (_TOP, "litellm_settings router_settings general_settings strategy",
     "what routes share stands in `defaults`: timeouts, retry, hedge, limit, breaker, on_overrun"),
    (_TOP, "environment_variables env", 'values are taken from the environment as "${NAME}", where they are needed'),
    (_TOP, "master_key api_key api_keys keys auth", _KEYS),
    (_TOP, "fallback fallbacks", f"at a route, or below `defaults`: {_FALLBACK}"),
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
     "waits for models are set at a route, or below `defaults`: `timeouts: {total_s: 30}`"),
    (_UPSTREAM, "api_base base url api_url endpoint openai_api_base azure_endpoint host", _BASE_URL),
    (_UPSTREAM, "api_key apikey token auth virtual_key openai_api_key", 'write `key: "${OPENAI_API_KEY}"`'),
    (_UPSTREAM, "provider type custom_llm_provider llm_provider",
     "write `kind: openai` or `kind: anthropic`, the protocol that it speaks"),
    (_UPSTREAM, "model_name deployment deployment_id litellm_params override_params", _MODELS),
    (_UPSTREAM, "api_version azure_deployment", _AZURE),
    (_UPSTREAM, "timeout request_timeout stream_timeout deadline", f"at the route: {_TIME}"),
    (_UPSTREAM, "num_retries max_retries retries", f"at the route: {_RETRY}"),
    (_UPSTREAM, "fallback fallbacks", f"at the route: {_FALLBACK}"),
    (_UPSTREAM, "weight", _WEIGHT),
    (_UPSTREAM, "max_parallel_requests max_concurrency concurrency", _LIMIT),
    (_UPSTREAM, "rpm tpm", f"how many requests an upstream takes is learned from its refusals; {_LIMIT}"),
    (_UPSTREAM, "extra_headers custom_headers default_headers", "write `headers: {NAME: VALUE}`"),
    (_UPSTREAM, "input_cost_per_token output_cost_per_token price pricing cost",
     "write `prices: {MODEL: {input_per_mtok: 2.5, output_per_mtok: 10}}`, in USD for a million tokens"),
    (_UPSTREAM, "ssl_verify verify_ssl", "write `verify: false`"),
    (_UPSTREAM, "http_version http2", 'write `http: "2"`'),
    (_ROUTE, "fallback fallbacks", _FALLBACK),
    (_ROUTE, "timeout request_timeout timeout_s total_s stream_timeout deadline_s deadline_ms", _TIME),
    (_ROUTE, "num_retries max_retries retries max_attempts", _RETRY),
    (_ROUTE, "targets providers deployments upstream provider", "write `upstreams: [NAME]`"),
    (_ROUTE, "strategy routing routing_strategy mode",
     "write `pick: balance` (the less busy one) or `pick: order` (the first that is well)"),
    (_ROUTE, "weight", _WEIGHT),
    (_ROUTE, "model_name alias", "clients send the route's own name; `model: NAME` is what its upstreams call it"),
    (_DEFAULTS, "fallback fallbacks", _FALLBACK),
    (_DEFAULTS, "timeout request_timeout deadline", "write `timeouts: {total_s: 30}`, in seconds"),
    (_DEFAULTS, "num_retries max_retries retries", _RETRY),
)
KEY_HINTS: Final[Mapping[tuple[str, ...], str]] = {
    (*where, name): text for where, names, text in _KEY_HINTS for name in names.split()}

_SPEAKS_OPENAI: Final = {
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai", "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1", "deepseek": "https://api.deepseek.com/v1", "xai": "https://api.x.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1", "bedrock": "https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
    "ollama": "http://127.0.0.1:11434/v1", "vllm": "http://HOST:8000/v1", "sglang": "http://HOST:30000/v1",
    "llamacpp": "http://HOST:8080/v1", "litellm": "http://HOST:4000/v1",
}
KIND_HINTS: Final[Mapping[str, str]] = {
    **{name: f"it speaks OpenAI's protocol: write kind: openai with base_url: {url}"
       for name, url in _SPEAKS_OPENAI.items()},
    **dict.fromkeys(("azure", "azure_openai", "azure_ai"), _AZURE),
    **dict.fromkeys(("claude", "messages"), "write kind: anthropic"),
    **dict.fromkeys(("gpt", "chatgpt", "openai_compatible", "custom", "openai_like", "text_completion_openai"),
                    "write kind: openai with its base_url"),
    **dict.fromkeys(("gguf", "local", "builtin"), "write kind: embedded with model: PATH of a GGUF file"),
}


def key_hint(path: Path, table: Mapping[tuple[str, ...], str]) -> str | None:
    """What to write instead of an unknown setting; None: nothing is known of it."""
    name = str(path[-1]).lower().replace("-", "_")
    return matching((*path[:-1], name), table)


def matching(path: Path, table: Mapping[tuple[str, ...], str]) -> str | None:
    """The text of the first pattern that matches the whole path."""
    for pattern, text in table.items():
        if len(pattern) == len(path) and all(step in (ANY, name) for step, name in zip(pattern, path, strict=True)):
            return text
    return None


def kind_hint(path: Path, word: str) -> str | None:
    """What to write instead of a kind of upstream that there is not."""
    is_kind = matching(path, {(*_UPSTREAM, "kind"): "yes"}) is not None
    return KIND_HINTS.get(re.sub(r"[ .-]", "_", word.lower()).replace("llama_cpp", "llamacpp")) if is_kind else None


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG])(i?)B?", re.IGNORECASE)
_SPELT = ((re.compile(r"(?<=\d) ?(?:s|secs?|seconds?)\b"), "s"), (re.compile(r"(?<=\d) ?(?:m|mins?|minutes?)\b"), "m"),
          (re.compile(r"(?<=\d) ?(?:h|hours?)\b"), "h"), (re.compile(r"(?<=\d) ?(?:ms|millis|milliseconds?)\b"), "ms"))
_FOREIGN_REFERENCE = re.compile(r"(?:Bearer )?(?:os\.environ/|env\.|env:|\$|\{\{ ?)([A-Z_][A-Z0-9_]*)(?: ?\}\})?")


def number_hint(path: Path, text: str, maximum: float | None) -> str | None:
    """The number to write for a quantity with its unit, where the setting's name or bound tells in what it is counted."""
    name = str(path[-1])
    for reader in (_seconds, _milliseconds, _bytes):
        value = reader(name, text.strip())
        if value is not None:
            return f"write {value[0]:.15g}, in {value[1]}"
    if maximum == 1 and re.fullmatch(r"\d+(\.\d+)? ?%", text):
        return f"write {float(text.rstrip('% ')) / 100:.15g}, a share of 1"
    return None


def _length_s(text: str) -> float | None:
    for spelt, unit in _SPELT:
        text = spelt.sub(unit, text)
    try:
        return seconds_in(text)
    except ValueError:
        return None


def _seconds(name: str, text: str) -> tuple[float, str] | None:
    found = _length_s(text) if name.endswith("_s") or name == "deadline" else None
    return (found, "seconds") if found is not None else None


def _milliseconds(name: str, text: str) -> tuple[float, str] | None:
    found = _length_s(text) if name.endswith("_ms") else None
    return (found * 1e3, "milliseconds") if found is not None else None


def _bytes(name: str, text: str) -> tuple[float, str] | None:
    found = _SIZE.fullmatch(text) if name.endswith("_bytes") else None
    if found is None:
        return None
    return round(float(found[1]) * 1024 ** ("KMG".index(found[2].upper()) + 1)), "bytes"


def foreign_reference(text: str) -> str | None:
    """What to write instead of a secret that names a variable as other tools do: os.environ/NAME, $NAME, env.NAME."""
    found = _FOREIGN_REFERENCE.fullmatch(text)
    return f"would be sent as it stands; a variable of the environment is written ${{{found[1]}}}" if found else None


