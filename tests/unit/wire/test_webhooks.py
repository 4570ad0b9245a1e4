"""Webhooks: signed so that the official SDK accepts them, and named by how the work ended."""

import base64
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import InvalidWebhookSignatureError, OpenAI

from stayfast.core.jobs import Batch, BatchState, Door, Job, JobResult, JobState
from stayfast.core.types import Api
from stayfast.wire.jobs.webhooks import (
    EVENT_TYPES,
    batch_event_type,
    decode_secret,
    encode_webhook,
    job_event_type,
    signed_headers,
)

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="


def job(door: Door, state: JobState) -> Job:
    return Job("job_1", door, Api.RESPONSES, "m", state, None, 0.0)


def batch(door: Door, state: BatchState) -> Batch:
    return Batch("batch_1", door, None, "/v1/chat/completions", "file-1", state, 0.0, 1.0)


def unwrap(body: bytes, headers: tuple[tuple[str, str], ...], secret: str) -> Any:
    with OpenAI(api_key="none") as client:
        return client.webhooks.unwrap(body, dict(headers), secret=secret)


@pytest.mark.parametrize("secret", [SECRET, "a plain secret"])
def test_signed_headers_of_an_event_are_accepted_by_the_official_sdk(secret: str) -> None:
    body = encode_webhook("evt_1", "batch.completed", "batch_1", 12.5)
    event = unwrap(body, signed_headers(secret, "evt_1", body, time.time()), secret)
    assert (event.type, event.id, event.data.id, event.created_at) == ("batch.completed", "evt_1", "batch_1", 12)


@pytest.mark.parametrize("other", [SECRET.replace("M", "N"), "whsec_"])
def test_signed_headers_by_another_secret_are_refused_by_the_official_sdk(other: str) -> None:
    body = encode_webhook("evt_1", "response.failed", "resp_1", 1)
    with pytest.raises(InvalidWebhookSignatureError):
        unwrap(body, signed_headers(SECRET, "evt_1", body, time.time()), other)


@given(st.binary())
def test_decode_secret_of_an_encoded_key_returns_the_key(key: bytes) -> None:
    assert decode_secret(f"whsec_{base64.b64encode(key).decode()}") == key


@given(st.text(alphabet="ABC=+/ -_", min_size=1).filter(lambda text: len(text) % 4))
def test_decode_secret_that_is_not_base64_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="after whsec_ must be base64"):
        decode_secret(f"whsec_{text}")


@pytest.mark.parametrize("state", [state for state in JobState if state.is_final])
def test_job_event_type_of_an_end_is_a_known_one(state: JobState) -> None:
    assert job_event_type(job(Door.JOBS, state), None) == f"job.{state.value}"
    assert job_event_type(job(Door.RESPONSES, state), None) in EVENT_TYPES


@pytest.mark.parametrize(("body", "word"), [({"status": "incomplete"}, "incomplete"), ({"status": "completed"}, "completed"),
                                            ({}, "completed")])
def test_job_event_type_of_a_response_follows_its_status(body: dict[str, str], word: str) -> None:
    result = JobResult("job_1", 1, JobState.COMPLETED, body=msgspec.json.encode(body))
    assert job_event_type(job(Door.RESPONSES, JobState.COMPLETED), result) == f"response.{word}"


def test_batch_event_type_follows_its_state() -> None:
    states = [state for state in BatchState if state.is_final]
    assert {batch_event_type(batch(Door.BATCH, state)) for state in states} <= EVENT_TYPES
    assert batch_event_type(batch(Door.MESSAGE_BATCH, BatchState.CANCELLED)) == "message_batch.ended"
