"""Anthropic's message batches: their creation, parsed request by request, the object, and the lines of results.

A creation may have 256 MB, so its body is never in memory as a whole. `RequestSplitter` finds the elements of `requests`
by brackets and quotes alone; a JSON parser then gets one element at a time. Memory: the largest element, and one part of
the body.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Batch, BatchState, Job, JobResult, JobState
from stayfast.wire.jobs.batches import compact_json
from stayfast.wire.jobs.lines import MESSAGES_ENDPOINT, is_repeated
from stayfast.wire.request_body import decode_typed

Json = dict[str, Any]

MAX_BODY_BYTES: Final = 256 << 20
MAX_REQUESTS: Final = 100_000
KEEP_S: Final = 29 * 86_400.0  # of results, from the batch's creation
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HEAD: Final = re.compile(rb'\s*\{\s*"requests"\s*:\s*\[')
_COMPACT_HEAD: Final = b'{"requests":['
_TAIL: Final = re.compile(rb"\s*\}\s*")
_MARK: Final = re.compile(rb'["\[\]{}]')
_BETWEEN: Final = re.compile(rb"\s*(,?)\s*")
_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_MAX_HEAD_BYTES: Final = 4096
_OPENING: Final = b"{["
_ERROR_TYPES: Final = {JobState.DEAD: ("api_error", "The request failed again and again.")}


class RequestSplitter:
    """Splits `{"requests": [...]}` into the elements of its array, as the parts of the body arrive."""

    __slots__ = ("_at", "_buffer", "_depth", "_is_ended", "_is_in_string", "_is_started", "_max_bytes", "_n", "_needs_comma")

    def __init__(self, max_element_bytes: int) -> None:
        self._max_bytes = max_element_bytes
        self._buffer = bytearray()
        self._at = 0  # the scanner's position in the buffer
        self._depth = 0  # of the current element
        self._is_in_string = self._is_started = self._is_ended = self._needs_comma = False
        self._n = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that end in `data`. Raises Rejected for a malformed body."""
        self._buffer += data
        if not self._is_started and not self._start():
            return []
        elements: list[bytes] = []
        while not self._is_ended:
            element = self._scan() if self._depth else self._open()
            if element is None:
                break
            if element:
                elements.append(element)
        if len(self._buffer) > self._max_bytes + len(data) and not self._is_ended:
            raise Rejected(f"requests.{self._n} is larger than {self._max_bytes} bytes.", status=413,
                           code="request_too_large", param=f"requests.{self._n}")
        return elements

    def close(self) -> None:
        """The end of the body. Raises Rejected if it is incomplete."""
        if not self._is_ended or _TAIL.fullmatch(self._buffer) is None:
            raise _malformed("it does not end with ]}" if self._is_started else "it has no requests")

    def _start(self) -> bool:
        head = _HEAD.match(self._buffer)
        if head is None:
            compact = b"".join(self._buffer[:_MAX_HEAD_BYTES].split())
            if compact == _COMPACT_HEAD or not _COMPACT_HEAD.startswith(compact) or len(self._buffer) > _MAX_HEAD_BYTES:
                raise _malformed("it must be an object with the member requests alone, an array")
            return False
        del self._buffer[:head.end()]
        self._is_started = True
        return True

    def _open(self) -> bytes | None:
        """Go to the start of the next element. None: more data is needed; empty: go on."""
        between = _BETWEEN.match(self._buffer)
        assert between is not None
        if between.end() == len(self._buffer):
            return None
        sign = self._buffer[between.end()]
        has_comma = bool(between[1])
        if sign == ord("]") and not has_comma:
            del self._buffer[:between.end() + 1]
            self._is_ended = True
            return b""
        if sign != ord("{") or has_comma != self._needs_comma:
            raise _malformed(f"requests.{self._n} is not an object")
        del self._buffer[:between.end()]
        self._at, self._depth = 1, 1
        return b""

    def _scan(self) -> bytes | None:
        """Go to the end of the current element. None: more data is needed."""
        buffer, at = self._buffer, self._at
        while True:
            if self._is_in_string:
                text = _STRING.match(buffer, at)
                assert text is not None
                at = text.end()
                if at >= len(buffer) or buffer[at] != ord('"'):  # the end of the data, or of half an escape
                    break
                at += 1
                self._is_in_string = False
            mark = _MARK.search(buffer, at)
            if mark is None:
                at = len(buffer)
                break
            at = mark.end()
            if mark[0] == b'"':
                self._is_in_string = True
                continue
            self._depth += 1 if mark[0] in _OPENING else -1
            if not self._depth:
                element = bytes(buffer[:at])
                del buffer[:at]
                self._at, self._n, self._needs_comma = 0, self._n + 1, True
                return element
        self._at = at
        return None


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One element of `requests`."""

    custom_id: str
    params: msgspec.Raw


class _Params(msgspec.Struct):
    model: str
    max_tokens: int
    stream: bool | None = None


_REQUEST: Final = msgspec.json.Decoder(BatchRequest)
_PARAMS: Final = msgspec.json.Decoder(_Params)


class RequestChecker:
    """Checks the requests of one creation, in order, and writes them as lines of a batch file."""

    def __init__(self, is_known_model: Callable[[str], bool], max_requests: int = MAX_REQUESTS) -> None:
        self._is_known_model = is_known_model
        self._max_requests = max_requests
        self._custom_ids: set[bytes] = set()
        self.n_requests = 0
        self.model = ""  # of the first one

    def encode(self, element: bytes) -> bytes:
        """The line of one element. Raises Rejected with its place."""
        at = f"requests.{self.n_requests}"
        if self.n_requests >= self._max_requests:
            raise Rejected(f"requests has more than {self._max_requests} elements.", status=413, code="too_many_requests",
                           param="requests")
        self.n_requests += 1
        request = decode_typed(_REQUEST, element, at)
        if _CUSTOM_ID.fullmatch(request.custom_id) is None:
            raise Rejected(f"{at}.custom_id must be 1 to 64 letters, digits, _ and -.", param=f"{at}.custom_id")
        if is_repeated(request.custom_id, self._custom_ids):
            raise Rejected(f"{at}.custom_id is that of an earlier request; it must be unique.", param=f"{at}.custom_id")
        self._check_params(bytes(request.params), f"{at}.params")
        return msgspec.json.encode({"custom_id": request.custom_id, "method": "POST", "url": MESSAGES_ENDPOINT,
                                    "body": compact_json(bytes(request.params))}) + b"\n"

    def _check_params(self, raw: bytes, at: str) -> None:
        params = decode_typed(_PARAMS, raw, at)
        if not self._is_known_model(params.model):
            raise Rejected(f"{at}.model: the model {params.model[:128]!r} does not exist here. GET /v1/models lists the "
                           "models.", status=404, code="model_not_found", param=f"{at}.model")
        if params.stream:
            raise Rejected(f"{at}.stream: a request of a batch cannot be streamed.", param=f"{at}.stream")
        if params.max_tokens < 1:
            raise Rejected(f"{at}.max_tokens must be at least 1.", param=f"{at}.max_tokens")
        self.model = self.model or params.model

    def close(self) -> None:
        """Raises Rejected if there was no request."""
        if not self.n_requests:
            raise Rejected("requests must have at least one element.", param="requests")


def encode_message_batch(batch: Batch) -> Json:
    """The object of a message batch. All requests are `processing` until the batch has ended."""
    ended_at = batch.completed_at or batch.cancelled_at or batch.expired_at or batch.failed_at
    is_ended = batch.state.is_final
    status = "ended" if is_ended else "canceling" if batch.state is BatchState.CANCELLING or (
        batch.cancelling_at is not None) else "in_progress"
    return {
        "id": batch.id, "type": "message_batch", "processing_status": status, "request_counts": _counts(batch),
        "created_at": rfc3339(batch.created_at), "expires_at": rfc3339(batch.expires_at),
        "ended_at": rfc3339(ended_at) if is_ended else None, "cancel_initiated_at": rfc3339(batch.cancelling_at),
        "archived_at": None, "results_url": results_path(batch.id) if is_ended and batch.output_file_id else None}


def _counts(batch: Batch) -> Json:
    if not batch.state.is_final:
        return {"processing": batch.n_total, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    counted = batch.n_completed + batch.n_failed + batch.n_expired
    n_rest = max(0, batch.n_total - counted)  # cancelled, some of them before they became jobs
    is_cancelled = batch.cancelling_at is not None
    return {"processing": 0, "succeeded": batch.n_completed, "errored": batch.n_failed + (0 if is_cancelled else n_rest),
            "canceled": n_rest if is_cancelled else 0, "expired": batch.n_expired}


def results_path(batch_id: str) -> str:
    """The address of the results. Relative, because a proxy in front of the gateway may have another scheme and host."""
    return f"/v1/messages/batches/{batch_id}/results"


def rfc3339(instant: float | None) -> str | None:
    """An instant in UTC."""
    return datetime.fromtimestamp(instant, UTC).isoformat().replace("+00:00", "Z") if instant is not None else None


def encode_result_line(job: Job, result: JobResult | None) -> bytes:
    """The line of a request that has ended, with its line break."""
    match job.state:
        case JobState.CANCELLED:
            outcome: Json = {"type": "canceled"}
        case JobState.EXPIRED:
            outcome = {"type": "expired"}
        case JobState.COMPLETED if result is not None and result.body:
            outcome = {"type": "succeeded", "message": compact_json(result.body)}
        case _:
            outcome = {"type": "errored", "error": _error_of(job, result)}
    return encode_outcome(job.custom_id or "", outcome)


def encode_outcome(custom_id: str, outcome: Json) -> bytes:
    """One line of results, with its line break."""
    return msgspec.json.encode({"custom_id": custom_id, "result": outcome}) + b"\n"


def _error_of(job: Job, result: JobResult | None) -> Json | msgspec.Raw:
    if result is not None and result.body:
        return compact_json(result.body)
    kind, message = _ERROR_TYPES.get(job.state, ("api_error", "The request failed without a response."))
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _malformed(why: str) -> Rejected:
    return Rejected(f"The body is malformed: {why}.", code="invalid_json", param="requests")
