"""Webhooks as OpenAI sends them: the event, and its signature by the Standard Webhooks scheme (standardwebhooks.com).

    webhook-signature: v1,base64(HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}.{body}"))

where the secret is `whsec_` and the key in base64; any other secret is the key itself. A receiver drops events older than
five minutes, so each attempt is signed anew.
"""

import base64
import binascii
import hashlib
import hmac

import msgspec

from stayfast.core.jobs import Batch, BatchState, Door, Job, JobResult, JobState

_ENCODED = "whsec_"
_RESPONSE_WORDS = {JobState.COMPLETED: "completed", JobState.CANCELLED: "cancelled"}
EVENT_TYPES = frozenset((
    *(f"batch.{word}" for word in ("completed", "failed", "expired", "cancelled")),
    *(f"response.{word}" for word in ("completed", "failed", "cancelled", "incomplete")),
    *(f"job.{state.value}" for state in JobState if state.is_final), "message_batch.ended"))


def decode_secret(secret: str) -> bytes:
    """The key of a secret. Raises ValueError if the part after `whsec_` is not base64."""
    if not secret.startswith(_ENCODED):
        return secret.encode()
    encoded = secret.removeprefix(_ENCODED)
    try:
        if len(encoded) % 4:  # b64decode accepts surplus padding
            raise binascii.Error
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError("the part of a webhook's secret after whsec_ must be base64") from None


def signed_headers(secret: str, event_id: str, body: bytes, now: float) -> tuple[tuple[str, str], ...]:
    """The headers of one attempt. now: Unix seconds."""
    timestamp = str(int(now))
    digest = hmac.new(decode_secret(secret), b"%b.%b.%b" % (event_id.encode(), timestamp.encode(), body), hashlib.sha256)
    return (("content-type", "application/json"), ("webhook-id", event_id), ("webhook-timestamp", timestamp),
            ("webhook-signature", f"v1,{base64.b64encode(digest.digest()).decode()}"))


def encode_webhook(event_id: str, kind: str, subject_id: str, created_at: float) -> bytes:
    """The body of an event: never the prompt or the answer, only where they are."""
    return msgspec.json.encode({"id": event_id, "object": "event", "created_at": int(created_at), "type": kind,
                                "data": {"id": subject_id}})


def batch_event_type(batch: Batch) -> str:
    """The event of a batch that has ended."""
    if batch.door is Door.MESSAGE_BATCH:
        return "message_batch.ended"
    return f"batch.{batch.state.value if batch.state is not BatchState.CANCELLING else BatchState.CANCELLED.value}"


def job_event_type(job: Job, result: JobResult | None) -> str:
    """The event of a job that has ended; a response that was cut off at its length limit is incomplete."""
    if job.door is not Door.RESPONSES:
        return f"job.{job.state.value}"
    word = _RESPONSE_WORDS.get(job.state, "failed")
    if word == "completed" and result is not None and _status_of(result.body) == "incomplete":
        word = "incomplete"
    return f"response.{word}"


class _Status(msgspec.Struct):
    status: str = ""


def _status_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Status).status
    except msgspec.DecodeError:
        return ""
