"""The whole family of errors on one page: whose fault it is decides the class, and the class decides the status.

`wire.errors` is the only place that renders them for a client. Messages never hold prompts, answers or keys: an
upstream's error body travels beside the message (`UpstreamFailed.body`) and is shown to the client only.
"""

from enum import StrEnum

from stayfast.core.types import Allowance, Stage


class StayfastError(Exception):
    """Base of all errors that reach a client. `status` is HTTP's; `code` is machine-readable and stable."""

    status = 500
    code = "internal_error"
    kind = "api_error"  # OpenAI's `type` and Anthropic's `error.type` are chosen from it and the status

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None,
                 param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param  # the offending field, as a path: messages[2].content
        self.retry_after_s = retry_after_s
        self.server_timing: str | None = None  # where the time went, for an error that ended the story of a request
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class Rejected(StayfastError):
    """The caller's fault: 400, 401, 403, 404, 405, 413, 415, 431. Never retried, teaches nobody anything."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class Shed(StayfastError):
    """The gateway will not take it now: 429 (your quota) or 503 (our saturation), always with `retry_after_s`. `reason` is
    one of a few words of ours, for metrics; `is_final`: no retry within a client's patience can help.
    """

    status = 503
    code = "overloaded"
    kind = "overloaded_error"

    def __init__(self, message: str, *, reason: str = "", is_final: bool = False, allowances: tuple[Allowance, ...] = (),
                 code: str | None = None, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code, status=status, retry_after_s=retry_after_s)
        self.reason = reason
        self.is_final = is_final
        self.allowances = allowances  # of the client whose quota it was


class DeadlineExceeded(StayfastError):
    """Time ran out: 504, naming the stage that spent it and the limit that ended it."""

    status = 504
    code = "deadline_exceeded"
    kind = "timeout_error"

    def __init__(self, stage: Stage, limit: str, seconds: float) -> None:
        if limit == "total_s":  # whoever set it: the route, its time-outs, or the client
            message = f"the request's deadline of {seconds:g} s passed in stage {stage.value}"
        elif limit == "budget_s":
            message = f"stage {stage.value} used up its part of the deadline, {seconds:g} s"
        else:
            message = f"{limit} of {seconds:g} s exceeded in stage {stage.value}"
        super().__init__(message, code=f"{limit}_exceeded")
        self.stage = stage
        self.limit = limit  # total_s, budget_s, first_token_s, idle_s


class Fault(StrEnum):
    """How an upstream failed, by evidence, not by the wording of its message."""

    CONNECT = "connect"  # no connection: refused, unreachable, DNS, TLS
    RESET = "reset"  # the connection broke before the answer was whole
    TIMEOUT = "timeout"  # connect, first token or idle
    STATUS = "status"  # an HTTP error status
    IN_BAND = "in_band"  # an error event inside HTTP 200
    TRUNCATED = "truncated"  # the body ended cleanly, the protocol's own end never came
    MALFORMED = "malformed"  # not HTTP, not JSON, not the protocol
    CRASHED = "crashed"  # the embedded engine's process died
    RAISED = "raised"  # a turn of our operator's own raised, or brought nothing


_CREDENTIALS = (401, 402, 403, 407)
_UNSUPPORTED = (501, 505)  # by what the server is, not by how it is
_TOO_MANY = 429


class UpstreamFailed(StayfastError):
    """Their fault. `upstream_status` is what they answered (None: no answer); `body` their error body, for the client."""

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
        self.is_model_missing = False  # it knows no such model or earlier response, or is not there: another may
        self.detail = ""  # for operators: addresses and the system's error numbers; never shown to a client
        self.is_once = False  # it may have done something already: nobody should ask it the same again
        if kind is not None:
            self.kind = kind

    @property
    def what(self) -> str:
        """In a word: the status that it answered, or how it failed."""
        return str(self.upstream_status) if self.upstream_status is not None else self.fault.value

    @property
    def is_for_operator(self) -> bool:
        """Whether only our operator can mend it (refused credentials): the same upstream again is no use, another may be."""
        return self.upstream_status in _CREDENTIALS or self.upstream_status in _UNSUPPORTED

    @property
    def is_refused(self) -> bool:
        """Whether our key, or the model, is no good there: of no use to this upstream's other requests, either."""
        return self.is_model_missing or self.upstream_status in _CREDENTIALS

    @property
    def is_undone(self) -> bool:
        """Whether nothing was done for it, so that even a stateful request may be sent elsewhere."""
        return self.fault is Fault.CONNECT or self.upstream_status == _TOO_MANY or self.is_refused

    @property
    def is_clients_fault(self) -> bool:
        """Whether the upstream's verdict is on the request itself, so that no other answer would be truer."""
        return self.kind == "invalid_request_error"

    @property
    def can_retry(self) -> bool:
        """Whether another attempt may help, before any content has reached the client."""
        return not self.is_final or self.is_model_missing
