"""Vendor behaviour around an answer: quotas that refill, rate limit headers, error bodies."""

from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Annotated, Any, Final, Literal, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Api
from stayfast.policy.admission.quota import Bucket

Vendor = Literal["openai", "azure", "openrouter", "anthropic", "vllm"]
Headers = tuple[tuple[str, str], ...]
JSON: Final = ("content-type", "application/json")
SSE: Final = ("content-type", "text/event-stream; charset=utf-8")


class VendorLimit(NamedTuple):
    """The state of one limit. `name`: requests, tokens, input-tokens or output-tokens. `limit`: the capacity of its bucket,
    which refills in `window_s` seconds. `full_in_s`: seconds until it is full.
    """

    name: str
    limit: int
    remaining: int
    full_in_s: float
    window_s: float = 60.0


class VendorError(NamedTuple):
    """An error, independent of the dialect. `message`, `type` and `code` are OpenAI's; `text` is Anthropic's message, whose
    type follows from the status.
    """

    status: int
    message: str
    type: str
    code: str | None
    text: str
    retry_after_s: float | None = None


_OPENAI: Final[dict[int, tuple[str, str | None, str]]] = {  # type, code and message by status
    400: ("invalid_request_error", None, "The request could not be processed."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    402: ("insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
    403: ("invalid_request_error", "permission_denied", "You are not allowed to do this."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    408: ("server_error", "timeout", "The request timed out."),
    409: ("invalid_request_error", "conflict", "The request conflicts with another one."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    503: ("service_unavailable_error", "server_is_overloaded", "The server is overloaded. Please try again later."),
    504: ("server_error", "timeout", "The request timed out."),
}
_SERVER_ERROR: Final = ("server_error", None, "The server had an error while processing your request. Sorry about that!")
_ANTHROPIC: Final = {  # type and message by status
    400: ("invalid_request_error", "The request could not be processed."),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your credit balance is too low to access the Anthropic API."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    409: ("conflict_error", "The request conflicts with another one."),
    413: ("request_too_large", "Request exceeds the maximum allowed number of bytes."),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit. Please try again later."),
    504: ("timeout_error", "The request timed out."),
    529: ("overloaded_error", "Overloaded"),
}
_API_ERROR: Final = ("api_error", "Internal server error")
_ASSUMED_LIMIT: Final = VendorLimit("requests", 500, 0, 60.0)  # of an injected 429 without a quota
RATE_LIMITED: Final = 429  # HTTP's
_MINUTE_S: Final = 60.0
_LIMIT_NAMES: Final = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)",
                 "input-tokens": "input tokens per min (ITPM)", "output-tokens": "output tokens per min (OTPM)"}
_NEVER_RETRIED: Final = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "enforced_spend_limit_reached", "contract_spend_limit_reached"})


def error_for_status(status: int, code: str = "", retry_after_s: float | None = None) -> VendorError:
    """The usual error of a status; `code` overrides its code."""
    kind, usual, message = _OPENAI.get(status, _SERVER_ERROR)
    error_type = _ANTHROPIC.get(status, _API_ERROR)[1]
    if status == 529:
        message = error_type
    if code in _NEVER_RETRIED:
        error_type = "You have reached your specified API usage limits."
    if code in ("insufficient_quota", "credit_balance_exhausted"):
        kind, message = "insufficient_quota", "You exceeded your current quota, please check your plan and billing details."
    elif code == "slow_down":
        kind, message = "rate_limit_error", "Your traffic is growing too fast. Please slow down."
    return VendorError(status, message, kind, code or usual, error_type, retry_after_s)


def rate_limit_error(limit: VendorLimit, cost: int, model: str, retry_after_s: float | None) -> VendorError:
    """A 429 because `cost` exceeds the rest of a limit. `retry_after_s`: until it fits; None: not reported."""
    what = limit.name.replace("-", " ")
    is_usual = limit.window_s == _MINUTE_S
    per = _LIMIT_NAMES[limit.name] if is_usual else f"{what} per {limit.window_s:g}s"
    about = f"{model} in organization org-simulated on {per}: Limit {limit.limit}"
    if cost > limit.limit:
        message = f"Request too large for {about}, Requested {cost}."
    else:
        message = f"Rate limit reached for {about}, Used {limit.limit - limit.remaining}, Requested {cost}."
        if retry_after_s is not None:
            message += f" Please try again in {retry_after_s:.3g}s."
    window = "minute" if is_usual else f"{limit.window_s:g} seconds"
    text = (f"This request would exceed your organization's rate limit of {limit.limit:,} {what} per {window} (org: "
            f"org-simulated, model: {model}). You can see the response headers for current usage. Please reduce the prompt "
            "length or the maximum tokens requested, or try again later.")
    kind = "requests" if limit.name == "requests" else "tokens"
    return VendorError(RATE_LIMITED, message, kind, "rate_limit_exceeded", text, retry_after_s)


def exhaust_first_limit(limits: list[VendorLimit], retry_after_s: float | None) -> list[VendorLimit]:
    """The limits with the first one exhausted; without limits, an assumed one."""
    first, *others = limits or [_ASSUMED_LIMIT]
    return [first._replace(remaining=0, full_in_s=max(first.window_s, retry_after_s or 0.0)), *others]


def overloaded_error(vendor: Vendor, api: Api) -> VendorError:
    if vendor == "anthropic" and api.is_anthropic:
        return error_for_status(529)
    return error_for_status(503)


def error_body(trouble: VendorError, vendor: Vendor, api: Api, request_id: str, wall: float) -> dict[str, Any]:
    """The error in the dialect of `api`, as JSON. `wall`: seconds since the epoch."""
    if api.is_anthropic:
        error: dict[str, Any] = {"type": _ANTHROPIC.get(trouble.status, _API_ERROR)[0], "message": trouble.text}
        if trouble.code in _NEVER_RETRIED or trouble.code == "ramp_limit_exceeded":
            error["details"] = {"error_code": trouble.code}
        return {"type": "error", "error": error, "request_id": request_id}
    if vendor == "vllm":
        return {"error": {"message": trouble.message, "type": trouble.type, "param": None, "code": trouble.status}}
    error = {"message": trouble.message, "type": trouble.type, "param": None, "code": trouble.code}
    if vendor == "openrouter" and trouble.retry_after_s is not None:
        error["metadata"] = {"headers": {"X-RateLimit-Reset": str(ceil((wall + trouble.retry_after_s) * 1000))}}
    return {"error": error}


def error_headers(trouble: VendorError, vendor: Vendor) -> Headers:
    """The headers of an error: when to retry, if the vendor states it."""
    headers: Headers = ()
    if trouble.code in _NEVER_RETRIED:
        headers = (("x-should-retry", "false"),)
    if trouble.retry_after_s is None or vendor in ("openrouter", "vllm"):
        return headers
    headers += (("retry-after", str(max(1, ceil(trouble.retry_after_s)))),)
    if vendor in ("openai", "azure"):
        headers += (("retry-after-ms", str(max(1, ceil(trouble.retry_after_s * 1000)))),)
    return headers


def limit_headers(limits: list[VendorLimit], vendor: Vendor, wall: float) -> Headers:
    """The rate limit headers of the vendor; `wall`: seconds since the epoch. OpenRouter and vLLM have none."""
    if vendor == "anthropic":
        return tuple(pair for one in _add_total_tokens(limits) for pair in (
            (f"anthropic-ratelimit-{one.name}-limit", str(one.limit)),
            (f"anthropic-ratelimit-{one.name}-remaining", str(one.remaining)),
            (f"anthropic-ratelimit-{one.name}-reset", format_rfc3339(wall + one.full_in_s))))
    if vendor in ("openai", "azure"):
        format_reset = format_go_duration if vendor == "openai" else lambda seconds: str(ceil(seconds))
        return tuple(pair for one in limits if one.name in ("requests", "tokens") for pair in (
            (f"x-ratelimit-limit-{one.name}", str(one.limit)),
            (f"x-ratelimit-remaining-{one.name}", str(one.remaining)),
            (f"x-ratelimit-reset-{one.name}", format_reset(one.full_in_s))))
    return ()


def _add_total_tokens(limits: list[VendorLimit]) -> list[VendorLimit]:
    """Anthropic also reports input and output tokens together, if both are limited."""
    by_name = {limit.name: limit for limit in limits}
    if "tokens" in by_name or not ("input-tokens" in by_name and "output-tokens" in by_name):
        return limits
    inputs, outputs = by_name["input-tokens"], by_name["output-tokens"]
    both = VendorLimit("tokens", inputs.limit + outputs.limit, inputs.remaining + outputs.remaining,
                       max(inputs.full_in_s, outputs.full_in_s))
    return [*limits, both]


def vendor_headers(vendor: Vendor, request_id: str, spent_s: float) -> Headers:
    """The headers that the vendor sends with every answer."""
    if vendor == "anthropic":
        return (("request-id", request_id), ("anthropic-organization-id", "org-simulated"))
    if vendor == "openai":
        return (("x-request-id", request_id), ("openai-organization", "org-simulated"),
                ("openai-processing-ms", str(round(spent_s * 1000))), ("openai-version", "2020-10-01"))
    return (("x-request-id", request_id),)


def format_go_duration(seconds: float) -> str:
    """A duration in Go's format, in milliseconds: 0s, 12ms, 6.57s, 6m0s, 1h30m0s."""
    n_ms = round(seconds * 1000)
    if n_ms < 1000:
        return f"{n_ms}ms" if n_ms else "0s"
    minutes, rest_ms = divmod(n_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def format_rfc3339(wall: float) -> str:
    """An instant in RFC 3339 format, UTC, rounded up to the second."""
    return datetime.fromtimestamp(ceil(wall), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_QUOTA_FIELDS: Final = {"requests": "requests_per_min", "tokens": "tokens_per_min", "input-tokens": "input_tokens_per_min",
                  "output-tokens": "output_tokens_per_min"}


@dataclass(frozen=True, slots=True)
class VendorQuota:
    """Limits per minute; None: no limit. OpenAI and Azure limit requests and tokens, Anthropic all four.

    burst_s: the capacity of a bucket in seconds of its rate, at least one request or token; headers and errors state this
    capacity. Output is charged in advance by the request's `max_tokens`, or `assumed_output`, and corrected at the end.
    """

    requests_per_min: Annotated[int | None, SettingDoc(
        "Requests per minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    tokens_per_min: Annotated[int | None, SettingDoc(
        "Tokens per minute, prompt and answer. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    input_tokens_per_min: Annotated[int | None, SettingDoc(
        "Prompt tokens per minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    output_tokens_per_min: Annotated[int | None, SettingDoc(
        "Answer tokens per minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    burst_s: Annotated[float, SettingDoc("Size of a bucket, in seconds of its rate.", more_than=0, maximum=3600)] = 60.0
    assumed_output: Annotated[int, SettingDoc(
        "Tokens charged in advance for an answer without a limit.", minimum=0, maximum=1000000)] = 256

    def __post_init__(self) -> None:
        check_bounds(self)


class VendorMeter:
    """The token buckets of one provider. Single loop."""

    def __init__(self, quota: VendorQuota, now: float) -> None:
        self._quota = quota
        self._buckets: dict[str, Bucket] = {}
        for name, field in _QUOTA_FIELDS.items():
            per_min = getattr(quota, field)
            if per_min is not None:
                self._buckets[name] = Bucket(max(1.0, per_min * quota.burst_s / 60), per_min / 60, now)

    def charge(self, n_input: int, most_output: int | None, model: str, now: float) -> "VendorError | Charge":
        """Charge a request to every bucket, or to none and return the error of the first that is too low."""
        n_output = most_output if most_output is not None else self._quota.assumed_output
        costs = {"requests": 1, "tokens": n_input + n_output, "input-tokens": n_input, "output-tokens": n_output}
        for name, bucket in self._buckets.items():
            if not bucket.has_room(costs[name], now):
                cost = costs[name]
                return rate_limit_error(self._limit(name, now), cost, model, bucket.wait_s(cost, now))
        for name, bucket in self._buckets.items():
            bucket.take(costs[name], now)
        return Charge(self, n_output)

    def correct(self, n_tokens: int, now: float) -> None:
        """Charge the difference of actual and estimated output tokens; a negative one is refunded."""
        for name in ("tokens", "output-tokens"):
            bucket = self._buckets.get(name)
            if bucket is not None:
                bucket.charge(n_tokens, now)

    def list_limits(self, now: float) -> list[VendorLimit]:
        return [self._limit(name, now) for name in self._buckets]

    def _limit(self, name: str, now: float) -> VendorLimit:
        bucket = self._buckets[name]
        return VendorLimit(name, int(bucket.capacity), max(0, int(bucket.level(now))), bucket.full_in_s(now),
                     max(self._quota.burst_s, 1 / bucket.per_s))


class Charge:
    """The advance charge of one request."""

    __slots__ = ("_meter", "_n_output")

    def __init__(self, meter: VendorMeter, n_output: int) -> None:
        self._meter = meter
        self._n_output = n_output

    def settle(self, n_output: int, now: float) -> None:
        """Correct the charge: the answer has `n_output` tokens."""
        self._meter.correct(n_output - self._n_output, now)
