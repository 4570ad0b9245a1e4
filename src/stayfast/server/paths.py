"""Paths and their methods: those of LLM requests (`LLM_ENDPOINTS`), and those that `admin_endpoints` serves."""

from stayfast.core.errors import Rejected, Shed
from stayfast.core.types import Api
from stayfast.server.job_paths import find_template, job_methods, job_socket_label
from stayfast.server.ui_paths import PAGE, is_page_path, page_methods

LLM_PATHS = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/rerank": Api.RERANK,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.COUNT_TOKENS,
    "/v1/responses/input_tokens": Api.INPUT_TOKENS,
    "/tokenize": Api.TOKENIZE,
}
LLM_ENDPOINTS = {prefix + path: api for prefix in ("", "/openai", "/anthropic") for path, api in LLM_PATHS.items()}
MODELS = frozenset(("/v1/models", "/openai/v1/models", "/anthropic/v1/models"))
HEALTH = frozenset(("/livez", "/readyz", "/healthz", "/health"))
OPEN_PATHS = HEALTH | {"/", "/openapi.json"}
REQUESTS = "/admin/requests"
STATE = "/debug/state"
SETTINGS = "/admin/settings"
METRICS = "/metrics"
CACHE = "/admin/cache"
CONVERSATIONS = "/admin/conversations"
GATEWAYS = "/admin/gateways"
SNAPSHOT = "/admin/snapshot"
FINDINGS = "/admin/findings"
LIVE = "/admin/live"
HISTORY = "/admin/live/history"
TRAFFIC = "/admin/traffic"
PROMPTS = "/admin/prompts"
CLASSIFY = "/v1/classify"
MAX_LISTED = 1000  # requests in one response
_OTHER_PATHS = OPEN_PATHS | MODELS | {METRICS, REQUESTS, STATE, CACHE, GATEWAYS, SETTINGS, SNAPSHOT, HISTORY,
                                     FINDINGS, TRAFFIC, CONVERSATIONS, PROMPTS}
# one key sees all tenants
ADMIN_PATHS = frozenset((STATE, SETTINGS, GATEWAYS, TRAFFIC, FINDINGS, SNAPSHOT, HISTORY, PROMPTS))
_READ_METHODS = ("GET", "HEAD")
RETRY_WHEN_DRAINING_S = 1.0


def error_dialect(path: str) -> Api:
    """The API whose error format clients of this path expect."""
    api = LLM_ENDPOINTS.get(path)
    if api is not None:
        return api
    return Api.MESSAGES if path.startswith("/anthropic/") or "/messages" in path else Api.CHAT


def allowed_methods(path: str) -> tuple[str, ...]:
    """The methods of a path; empty for an unknown path."""
    if path in LLM_ENDPOINTS or path == CLASSIFY:
        return ("POST",)
    if path == LIVE:
        return ("GET",)
    if path == CACHE or parse_cache_key(path) is not None:
        return (*_READ_METHODS, "DELETE")
    if parse_conversation(path) is not None:
        return ("DELETE",)
    if path in _OTHER_PATHS or any(parse(path) is not None for parse in (parse_model_id, parse_request_id, parse_prompt_id)):
        return _READ_METHODS
    if is_page_path(path):
        return page_methods(path)
    return ("GET",) if job_socket_label(path) is not None else job_methods(path)


def metric_label(path: str) -> str:
    """A path as a metric label. Unknown paths share one label, so that clients cannot add series."""
    if path in LLM_ENDPOINTS or path in _OTHER_PATHS or path in (LIVE, CLASSIFY):
        return path
    if parse_request_id(path) is not None:
        return f"{REQUESTS}/{{id}}"
    if parse_cache_key(path) is not None:
        return f"{CACHE}/{{key}}"
    if parse_conversation(path) is not None:
        return f"{CONVERSATIONS}/{{id}}"
    if parse_prompt_id(path) is not None:
        return f"{PROMPTS}/{{id}}"
    if parse_model_id(path) is not None:
        return "/v1/models/{id}"
    if is_page_path(path):
        return PAGE
    return job_socket_label(path) or find_template(path) or "other"


def parse_model_id(path: str) -> str | None:
    """The model in `/v1/models/{id}`, still percent-encoded; it may contain slashes."""
    for prefix in MODELS:
        if path.startswith(prefix + "/") and len(path) > len(prefix) + 1:
            return path[len(prefix) + 1:]
    return None


def parse_request_id(path: str) -> str | None:
    """The id in `/admin/requests/{id}`, still percent-encoded; it may contain slashes."""
    head, _, request_id = path.partition(f"{REQUESTS}/")
    return request_id if request_id and not head else None


def parse_cache_key(path: str) -> str | None:
    """The key in `/admin/cache/{key}`."""
    head, _, key = path.partition(f"{CACHE}/")
    return key if key and not head else None


def parse_conversation(path: str) -> str | None:
    """The id in `/admin/conversations/{id}`; it may contain slashes."""
    head, _, name = path.partition(f"{CONVERSATIONS}/")
    return name if name and not head else None


def parse_prompt_id(path: str) -> str | None:
    """The id in `/admin/prompts/{id}`."""
    head, _, prompt_id = path.partition(f"{PROMPTS}/")
    return prompt_id if prompt_id and not head else None


def shutting_down_error() -> Shed:
    """The error for requests during a drain. Each call makes a new one, because the request's timings are written to it."""
    return Shed("This gateway is shutting down.", code="draining", retry_after_s=RETRY_WHEN_DRAINING_S)


def wrong_method_error(method: str, path: str, methods: tuple[str, ...]) -> Rejected:
    """The error for a method that is not in `methods`, the path's methods; empty `methods`: for an unknown path."""
    shown = path[:200]
    if methods:
        return Rejected(f"Method {method} is not allowed for {shown}. Use {' or '.join(methods)}.", status=405,
                        code="method_not_allowed")
    meant = next((known for known in (f"/v1{shown}", shown.replace("/v1/v1/", "/v1/", 1))
                  if known != shown and (known in LLM_ENDPOINTS or known in _OTHER_PATHS)), None)
    hint = f" Did you mean {meant}? Check the /v1 in the base URL." if meant is not None else ""
    if not hint and shown.startswith("/v1/"):
        hint = " To pass it to an upstream, set `passthrough` in the gateway's settings (docs/pass-through.md)."
    return Rejected(f"Unknown endpoint {shown}.{hint}", status=404, code="not_found")
