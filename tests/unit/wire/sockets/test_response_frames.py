"""The messages of the Responses API over a WebSocket."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Fault, Rejected, Shed, UpstreamFailed
from stayfast.core.types import Api, Request
from stayfast.wire.sockets.response_frames import (
    CreateFrame,
    SteerFrame,
    add_lane,
    encode_empty_response,
    encode_socket_error,
    encode_steer_failure,
    parse_members,
    read_finished,
    read_frame,
    read_lane,
)


def read(message: str | bytes) -> CreateFrame | SteerFrame:
    """A client's message."""
    members = parse_members(message, 64)
    return read_frame(members, read_lane(members))


def create(**members: object) -> CreateFrame:
    """A `response.create`."""
    frame = read(json.dumps({"type": "response.create"} | members))
    assert isinstance(frame, CreateFrame)
    return frame


def test_read_frame_makes_a_streaming_body_without_own_members() -> None:
    """What POST /v1/responses would get."""
    frame = create(model="m", input="hi", stream_id="a", generate=False, background=None, unknown=1)
    assert msgspec.json.decode(frame.body) == {"model": "m", "input": "hi", "unknown": 1, "stream": True}
    assert (frame.lane, frame.is_generating) == ("a", False)
    assert create(model="m", stream_id=None).lane is None


@pytest.mark.parametrize(("message", "param"), [
    ("nonsense", None), ("[]", None), (b"{}", None), ('{"model": "m"}', "type"), ('{"type": "response.cancel"}', "type"),
    ('{"type": 3}', "type"), ('{"type": "response.create", "stream": false}', "stream"),
    ('{"type": "response.create", "background": true}', "background"),
    ('{"type": "response.create", "generate": "no"}', "generate"),
    ('{"type": "response.create", "stream_id": ""}', "stream_id"),
    ('{"type": "response.create", "stream_id": 3}', "stream_id"),
    ('{"type": "response.steer"}', "previous_response_id"), ("[" * 200 + "]" * 200, None), ('{"a": "\\ud800"}', None)])
def test_read_frame_rejects_bad_messages_with_the_field(message: str | bytes, param: str | None) -> None:
    """And each is a 400."""
    with pytest.raises(Rejected) as refused:
        read(message)
    assert refused.value.param == param
    assert refused.value.status == 400


@given(st.text() | st.binary())
def test_parse_members_of_anything_is_an_object_or_rejected(message: str | bytes) -> None:
    """No other exception."""
    with suppress(Rejected, UnicodeEncodeError):  # a lone surrogate cannot come from a WebSocket
        assert isinstance(parse_members(message, 64), dict)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.text(min_size=1).filter(str.isprintable))
def test_add_lane_only_adds_the_lane(event: dict[str, object], lane: str) -> None:
    """To any object."""
    event.pop("stream_id", None)
    assert json.loads(add_lane(msgspec.json.encode(event), lane)) == event | {"stream_id": lane}
    assert json.loads(add_lane(b"{ }", lane)) == {"stream_id": lane}
    assert json.loads(add_lane(msgspec.json.encode(event), None)) == event


def test_read_finished_finds_only_whole_responses() -> None:
    """A failed one cannot be continued."""
    whole = {"type": "response.completed", "response": {"id": "r"}}
    assert read_finished(msgspec.json.encode(whole)) is not None
    assert read_finished(msgspec.json.encode(whole | {"type": "response.failed"})) is None
    assert read_finished(b'{"type":"response.completed"}') is None
    assert read_finished(b"[DONE]") is None


def test_encode_socket_error_has_what_the_sdk_reads() -> None:
    """Status, lane, number and headers; an upstream's own message for client errors."""
    shed = json.loads(encode_socket_error(Shed("Full.", status=429, code="too_many", retry_after_s=2), "req_1", "a",
                                          n_events=3))
    assert (shed["type"], shed["status"], shed["stream_id"], shed["sequence_number"]) == ("error", 429, "a", 3)
    assert shed["error"] == {"message": "Full.", "type": "rate_limit_error", "code": "too_many", "param": None,
                             "headers": {"retry-after": "2", "x-request-id": "req_1"}}
    failed = UpstreamFailed("u", Fault.STATUS, "no", upstream_status=400,
                            body=b'{"error": {"message": "Bad tool", "type": "invalid_request_error", "param": "tools"}}')
    failed.status = 400
    shown = json.loads(encode_socket_error(failed, "req_1", None))
    assert (shown["error"]["message"], shown["error"]["param"]) == ("Bad tool", "tools")
    assert "stream_id" not in shown


def test_encode_steer_failure_returns_the_input() -> None:
    """So that its client can send it again."""
    members = parse_members('{"type": "response.steer", "previous_response_id": "r", "input": ["x"]}', 64)
    frame = read_frame(members, None)
    assert isinstance(frame, SteerFrame)
    assert json.loads(encode_steer_failure(frame))["steer"] == {"previous_response_id": "r", "input": ["x"]}


def test_encode_empty_response_is_created_and_completed() -> None:
    """Numbered as a stream."""
    frame = create(model="m", input="hi", instructions="Be brief.", generate=False)
    first, last = map(json.loads, encode_empty_response(Request(Api.RESPONSES, "m", True, b""), frame.fields, "r", 7))
    assert (first["type"], last["type"], last["sequence_number"]) == ("response.created", "response.completed", 1)
    assert (last["response"]["output"], last["response"]["instructions"]) == ([], "Be brief.")
