"""OpenAI's files: the object, its purposes, its expiry."""

from collections.abc import Mapping
from typing import Any, Final

from stayfast.core.errors import Rejected
from stayfast.core.jobs import FileInfo

Json = dict[str, Any]

BATCH: Final = "batch"
BATCH_OUTPUT: Final = "batch_output"
MESSAGE_BATCH: Final = "message_batch"  # the requests and results of Anthropic's batches, which are not listed
UPLOADED: Final = ("assistants", BATCH, "fine-tune", "vision", "user_data", "evals")
LISTED: Final = (*UPLOADED, BATCH_OUTPUT, "assistants_output", "fine-tune-results")
MIN_EXPIRY_S: Final = 3600
MAX_EXPIRY_S: Final = 2_592_000
_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"


def encode_file(info: FileInfo) -> Json:
    """The object of a file."""
    fields: Json = {"id": info.id, "object": "file", "bytes": info.n_bytes, "created_at": int(info.created_at),
                    "filename": info.filename, "purpose": info.purpose, "status": "processed", "status_details": None}
    fields["expires_at"] = int(info.expires_at) if info.expires_at is not None else None
    return fields


def parse_purpose(fields: Mapping[str, str]) -> str:
    """The purpose of an upload. Raises Rejected if it is missing or unknown."""
    purpose = fields.get("purpose")
    if purpose not in UPLOADED:
        what = "purpose is required" if purpose is None else "Unknown purpose"
        raise Rejected(f"{what}: use one of {', '.join(UPLOADED)}.", code="invalid_purpose", param="purpose")
    return purpose


def parse_form_expiry(fields: Mapping[str, str]) -> int | None:
    """The seconds of `expires_after` in a form; None without it. Raises Rejected."""
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    n_seconds = int(seconds) if seconds is not None and seconds.isascii() and seconds.isdigit() else None
    return check_expiry(anchor, n_seconds, "expires_after")


def check_expiry(anchor: str | None, seconds: int | None, param: str) -> int:
    """The seconds of an expiry policy. Raises Rejected."""
    if anchor != "created_at":
        raise Rejected(f"{param}: anchor must be created_at.", code="invalid_value", param=f"{param}.anchor")
    if seconds is None or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        raise Rejected(f"{param}: seconds must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.",
                       code="invalid_value", param=f"{param}.seconds")
    return seconds
