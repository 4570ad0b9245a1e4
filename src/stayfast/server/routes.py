"""Which path is whose: the hot endpoints, which the edge serves itself, and the cold ones of the ASGI application."""

from stayfast.core.errors import Rejected, Shed
from stayfast.core.types import Api
from stayfast.server.inbound import HOT

MODELS = frozenset(("/v1/models", "/openai/v1/models", "/anthropic/v1/models"))
HEALTH = frozenset(("/livez", "/readyz", "/healthz", "/health"))
OPEN = HEALTH | {"/", "/openapi.json"}
REQUESTS = "/admin/requests"
STATE = "/debug/state"
METRICS = "/metrics"
CACHE = "/admin/cache"
MAX_LISTED = 1000  # of them, at a time
_COLD = OPEN | MODELS | {METRICS, REQUESTS, STATE, CACHE}
_READING = ("GET", "HEAD")
RETRY_WHEN_DRAINING_S = 1.0


def dialect(path: str) -> Api:
    """Whose errors a client of this path understands."""
    api = HOT.get(path)
    if api is not None:
        return api
    return Api.MESSAGES if path.startswith("/anthropic/") or "/messages" in path else Api.CHAT


def allowed(path: str) -> tuple[str, ...]:
    """The methods of a path; none for a path that does not exist."""
    if path in HOT:
        return ("POST",)
    if path == CACHE or cache_key_in(path) is not None:
        return (*_READING, "DELETE")
    is_one = model_id(path) is not None or request_id_in(path) is not None
    return _READING if path in _COLD or is_one else ()


def label(path: str) -> str:
    """A path that may stand in a metric: known ones as they are, so that no client can add a series."""
    if path in HOT or path in _COLD:
        return path
    if request_id_in(path) is not None:
        return f"{REQUESTS}/{{id}}"
    if cache_key_in(path) is not None:
        return f"{CACHE}/{{key}}"
    return "/v1/models/{id}" if model_id(path) is not None else "other"


def model_id(path: str) -> str | None:
    """The model in `/v1/models/{id}`, still quoted; it may hold slashes."""
    for prefix in MODELS:
        if path.startswith(prefix + "/") and len(path) > len(prefix) + 1:
            return path[len(prefix) + 1:]
    return None


def request_id_in(path: str) -> str | None:
    """The id in `/admin/requests/{id}`, still quoted; clients may choose ids with slashes."""
    head, _, request_id = path.partition(f"{REQUESTS}/")
    return request_id if request_id and not head else None


def cache_key_in(path: str) -> str | None:
    """The key in `/admin/cache/{key}`."""
    head, _, key = path.partition(f"{CACHE}/")
    return key if key and not head else None


def shutting_down() -> Shed:
    """What a drain says to who comes too late or takes too long; a new one each time, as its end is noted on it."""
    return Shed("This gateway is shutting down.", code="draining", retry_after_s=RETRY_WHEN_DRAINING_S)


def wrong_method(method: str, path: str, methods: tuple[str, ...]) -> Rejected:
    """The refusal of a method that is not one of the path's `methods`; none: there is no such path."""
    shown = path[:200]
    if methods:
        return Rejected(f"{method} is not a method of {shown}: use {' or '.join(methods)}.", status=405,
                        code="method_not_allowed")
    meant = next((known for known in (f"/v1{shown}", shown.replace("/v1/v1/", "/v1/", 1))
                  if known != shown and (known in HOT or known in _COLD)), None)
    hint = f" Did you mean {meant}? Mind the base URL's /v1." if meant is not None else ""
    return Rejected(f"There is nothing at {shown}.{hint}", status=404, code="not_found")
