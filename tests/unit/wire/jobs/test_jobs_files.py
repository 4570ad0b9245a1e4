"""OpenAI's file object and the fields of an upload."""

import pytest
from openai.types import FileObject

from stayfast.core.errors import Rejected
from stayfast.core.jobs import FileInfo
from stayfast.wire.jobs.files import encode_file, parse_form_expiry, parse_purpose


def test_encode_file_is_the_sdk_type() -> None:
    info = FileInfo("file-1", "t", "batch", "in.jsonl", 7, 1000.9, 5000.2, "ab")
    typed = FileObject.model_validate(encode_file(info), strict=True)
    assert (typed.id, typed.bytes, typed.created_at, typed.expires_at) == ("file-1", 7, 1000, 5000)
    assert (typed.filename, typed.purpose, typed.status) == ("in.jsonl", "batch", "processed")


@pytest.mark.parametrize("fields", [{}, {"purpose": ""}, {"purpose": "batch_output"}, {"purpose": "message_batch"}])
def test_parse_purpose_unknown_is_rejected(fields: dict[str, str]) -> None:
    with pytest.raises(Rejected) as caught:
        parse_purpose(fields)
    assert caught.value.param == "purpose"


def test_parse_form_expiry_in_bounds_is_seconds() -> None:
    assert parse_form_expiry({"purpose": "batch"}) is None
    assert parse_form_expiry({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}) == 3600


@pytest.mark.parametrize(("anchor", "seconds"), [
    ("created_at", "3599"), ("created_at", "2592001"), ("created_at", "1e4"), ("created_at", None), ("now", "3600"),
    (None, "3600")])
def test_parse_form_expiry_outside_is_rejected(anchor: str | None, seconds: str | None) -> None:
    values = {"expires_after[anchor]": anchor, "expires_after[seconds]": seconds}
    with pytest.raises(Rejected):
        parse_form_expiry({name: value for name, value in values.items() if value is not None})
