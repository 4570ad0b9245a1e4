"""OpenAI's batches: the request that creates one, the object, and the lines of its output and error files.

The id of an output line is a digest of the input file's contents and the line's number, and so is its request id: a
batch that was interrupted has the same files as one that was not.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Batch, BatchState, Job, JobResult, JobState
from stayfast.core.types import Usage
from stayfast.wire.jobs.files import check_expiry
from stayfast.wire.jobs.lines import ENDPOINTS
from stayfast.wire.request_body import decode_typed

Json = dict[str, Any]

WINDOW: Final = "24h"
WINDOW_S: Final = 86_400.0
_INSTANTS: Final = ("in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
                    "cancelling_at", "cancelled_at")
_UNRUN: Final = {
    JobState.CANCELLED: ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
    JobState.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
}

MAX_PAIRS: Final = 16
MAX_PAIR_KEY: Final = 64  # characters
MAX_PAIR_VALUE: Final = 512


class OutputExpiry(msgspec.Struct, frozen=True):
    """How long the files of a batch are stored after their creation."""

    anchor: str | None = None
    seconds: int | None = None


class NewBatch(msgspec.Struct, frozen=True):
    """The body of `POST /v1/batches`. Unknown fields are ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None

    @property
    def output_keep_s(self) -> int | None:
        """Raises Rejected."""
        expiry = self.output_expires_after
        return check_expiry(expiry.anchor, expiry.seconds, "output_expires_after") if expiry is not None else None


_NEW: Final = msgspec.json.Decoder(NewBatch)


def parse_new_batch(body: bytes) -> NewBatch:
    """Raises Rejected for a malformed body, and for an endpoint or a window that is not served."""
    new = decode_typed(_NEW, body)
    if new.endpoint not in ENDPOINTS:
        raise Rejected(f"endpoint must be one of {', '.join(ENDPOINTS)}.", code="invalid_endpoint", param="endpoint")
    if new.completion_window != WINDOW:
        raise Rejected(f"completion_window must be {WINDOW}.", code="invalid_completion_window", param="completion_window")
    check_metadata(new.metadata or {})
    return new


def check_metadata(pairs: Mapping[str, str]) -> None:
    """Raises Rejected for more than OpenAI's bounds."""
    if len(pairs) > MAX_PAIRS or any(len(key) > MAX_PAIR_KEY or len(value) > MAX_PAIR_VALUE for key, value in pairs.items()):
        raise Rejected(f"metadata may have {MAX_PAIRS} pairs, with keys of {MAX_PAIR_KEY} and values of {MAX_PAIR_VALUE} "
                       "characters.", code="invalid_metadata", param="metadata")


def encode_batch(batch: Batch) -> Json:
    """The object of a batch."""
    fields: Json = {
        "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "model": batch.model or None, "errors": None,
        "input_file_id": batch.input_file_id, "completion_window": WINDOW, "status": batch.state.value,
        "output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id, "created_at": int(batch.created_at),
        "request_counts": {"total": batch.n_total, "completed": batch.n_completed, "failed": batch.n_failed},
        "usage": encode_batch_usage(batch.usage), "metadata": dict(batch.metadata) or None}
    if batch.problems:
        fields["errors"] = {"object": "list", "data": [
            {"code": problem.code, "line": problem.line, "message": problem.message, "param": problem.param}
            for problem in batch.problems]}
    for name in _INSTANTS:
        instant = getattr(batch, name)
        fields[name] = int(instant) if instant is not None else None
    return fields


def encode_batch_usage(usage: Usage) -> Json:
    """The tokens of all lines that have ended."""
    return {"input_tokens": usage.input_total, "input_tokens_details": {"cached_tokens": usage.cached_read},
            "output_tokens": usage.output, "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input_total + usage.output}


def line_digest(input_sha256: str, n: int) -> str:
    """Names line `n` of a file: 24 hex digits."""
    return blake2b(f"{input_sha256}:{n}".encode(), digest_size=12).hexdigest()


def encode_output_line(job: Job, result: JobResult | None, input_sha256: str) -> bytes:
    """The line of a job that has ended, with its line break."""
    digest = line_digest(input_sha256, job.line or 0)
    fields: Json = {"id": f"batch_req_{digest}", "custom_id": job.custom_id, "response": None, "error": None}
    if job.state in _UNRUN or result is None or not result.body:
        code, message = _UNRUN.get(job.state) or (job.why or "request_failed", "This request failed without a response.")
        fields["error"] = {"code": code, "message": message}
    else:
        fields["response"] = {"status_code": result.status_code, "request_id": f"req_{digest}",
                              "body": compact_json(result.body)}
    return msgspec.json.encode(fields) + b"\n"


def encode_unstored_line(n: int, custom_id: str, input_sha256: str, state: JobState) -> bytes:
    """The line of a request that never became a job, with its line break. state: CANCELLED or EXPIRED."""
    code, message = _UNRUN[state]
    return msgspec.json.encode({"id": f"batch_req_{line_digest(input_sha256, n)}", "custom_id": custom_id, "response": None,
                                "error": {"code": code, "message": message}}) + b"\n"


def is_output(job: Job) -> bool:
    """Whether a line belongs into the output file, else into the error file."""
    return job.state is JobState.COMPLETED


def compact_json(body: bytes) -> msgspec.Raw:
    """A JSON value on one line. What is no JSON becomes a text, so that the line stays valid."""
    try:
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(body.decode("utf-8", "replace")))


def end_state(batch: Batch) -> BatchState:
    """The final state of a batch whose lines have all ended."""
    if batch.cancelling_at is not None or batch.state is BatchState.CANCELLING:
        return BatchState.CANCELLED
    return BatchState.EXPIRED if batch.n_expired else BatchState.COMPLETED


def read_key(headers: Mapping[str, str]) -> str | None:
    """The idempotency key; None without one. Raises Rejected for one that is longer than 255 characters."""
    key = headers.get("idempotency-key") or None
    if key is not None and len(key) > 255:
        raise Rejected("idempotency-key must have at most 255 characters.", code="bad_header", param="idempotency-key")
    return key
