"""All errors that reach a client. The class names the party at fault, and decides the status.

Only `wire.errors` renders them. Messages never contain prompts, answers or keys; an upstream's error body travels beside
the message (`UpstreamFailed.body`) and is shown to the client only.
"""

from enum import StrEnum

from stayfast.core.types import Allowance, Stage


class StayfastError(Exception):
    """Base class. `status` is the HTTP status; `code` is machine-readable and stable."""

    status = 500
    code = "internal_error"
    kind = "api_error"  # OpenAI's `type` and Anthropic's `error.type` are chosen from it and the status

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None,
                 param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param  # path of the offending field: messages[2].content
        self.retry_after_s = retry_after_s
        self.server_timing: str | None = None  # time by stage, if the error ended a request that had begun
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class Rejected(StayfastError):
    """The caller's fault: 400, 401, 403, 404, 405, 413, 415, 431. Not retried, and not counted against any upstream."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class HookFailed(StayfastError):
    """A hook of the operator raised, took too long or returned nonsense: 500. The message names the hook and no prompt."""

    code = "hook_failed"


class Shed(StayfastError):
    """The gateway refuses the request for now: 429 (the client's quota) or 503 (overload), always with
    `retry_after_s`. `reason` is one of a few fixed words, for metrics; `is_final`: a retry by the client's SDK
    cannot help.
    """

    status = 503
    code = "overloaded"
    kind = "overloaded_error"

    def __init__(self, message: str, *, reason: str = "", is_final: bool = False, allowances: tuple[Allowance, ...] = (),
                 code: str | None = None, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code, status=status, retry_after_s=retry_after_s)
        self.reason = reason
        self.is_final = is_final
        self.allowances = allowances  # what the client has left of its quota


class DeadlineExceeded(StayfastError):
    """Time ran out: 504. Names the stage that was running and the limit that ended it."""

    status = 504
    code = "deadline_exceeded"
    kind = "timeout_error"

    def __init__(self, stage: Stage, limit: str, seconds: float) -> None:
        if limit == "total_s":  # set by the route, its time-outs or the client
            message = f"the request's deadline of {seconds:g} s passed in stage {stage.value}"
        elif limit == "budget_s":
            message = f"stage {stage.value} used up its part of the deadline, {seconds:g} s"
        else:
            message = f"{limit} of {seconds:g} s exceeded in stage {stage.value}"
        super().__init__(message, code=f"{limit}_exceeded")
        self.stage = stage
        self.limit = limit  # total_s, budget_s, first_token_s, idle_s


class Fault(StrEnum):
    """How an upstream failed, by status and protocol events, never by the text of its message."""

    CONNECT = "connect"  # no connection: refused, unreachable, DNS, TLS
    RESET = "reset"  # the connection broke before the answer was whole
    TIMEOUT = "timeout"  # connect, first token or idle
    STATUS = "status"  # an HTTP error status
    IN_BAND = "in_band"  # an error event inside HTTP 200
    TRUNCATED = "truncated"  # the body ended cleanly but without the protocol's end marker
    MALFORMED = "malformed"  # not HTTP, not JSON, not the protocol
    CRASHED = "crashed"  # the embedded engine's process died
    RAISED = "raised"  # the operator's own turn raised an exception or returned nothing


_CREDENTIALS = (401, 402, 403, 407)
_UNSUPPORTED = (501, 505)  # properties of the server, not of its load
_TOO_MANY = 429


class UpstreamFailed(StayfastError):
    """The upstream's fault. `upstream_status` is None if there was no answer; `body` is its error body, for the client."""

    status = 502
    code = "upstream_failed"

    def __init__(self, upstream: str, fault: Fault, message: str, *, upstream_status: int | None = None,
                 body: bytes = b"", retry_after_s: float | None = None, is_final: bool = False,
                 code: str | None = None, kind: str | None = None) -> None:
        super().__init__(message, code=code or f"upstream_{fault.value}", retry_after_s=retry_after_s)
        self.upstream = upstream
        self.fault = fault
        self.upstream_status = upstream_status
        self.body = body
        self.is_final = is_final  # no other attempt can help: a 4xx, an exhausted quota
        self.is_model_missing = False  # unknown model or earlier response at this upstream; another upstream may have it
        self.detail = ""  # for operators: addresses and system error numbers; never shown to a client
        self.is_once = False  # the request may already have had an effect, so it must not be sent again
        if kind is not None:
            self.kind = kind

    @property
    def what(self) -> str:
        """The upstream's status, or else the kind of failure, in one word."""
        return str(self.upstream_status) if self.upstream_status is not None else self.fault.value

    @property
    def is_for_operator(self) -> bool:
        """Whether only the operator can fix it (refused credentials, unsupported). Another upstream may still work."""
        return self.upstream_status in _CREDENTIALS or self.upstream_status in _UNSUPPORTED

    @property
    def is_refused(self) -> bool:
        """Whether the upstream refuses our key or model, so that its other requests fail as well."""
        return self.is_model_missing or self.upstream_status in _CREDENTIALS

    @property
    def is_undone(self) -> bool:
        """Whether the upstream did no work, so that even a stateful request may be sent to another."""
        return self.fault is Fault.CONNECT or self.upstream_status == _TOO_MANY or self.is_refused

    @property
    def is_clients_fault(self) -> bool:
        """Whether the upstream found fault with the request itself, so that every upstream would."""
        return self.kind == "invalid_request_error"

    @property
    def can_retry(self) -> bool:
        """Whether another attempt may help, as long as no content has reached the client."""
        return not self.is_final or self.is_model_missing
