"""The client's time to the first token, from the body and from a header."""

import msgspec
import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.server.http_request import parse_start_limit_s
from stayfast.wire.request_body import decode


def body(value: object) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], "start_within": value})


@pytest.mark.parametrize(("value", "seconds"), [(30, 30), (1.5, 1.5), ("30", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600)])
def test_start_within_of_a_body_is_read_and_removed(value: object, seconds: float) -> None:
    request = decode(Api.CHAT, body(value))
    assert request.start_within_s == seconds
    assert "start_within" not in msgspec.json.decode(request.body)


def test_start_within_null_is_no_limit_and_removed() -> None:
    request = decode(Api.CHAT, body(None))
    assert request.start_within_s is None
    assert "start_within" not in msgspec.json.decode(request.body)


def test_start_within_inside_a_message_is_text() -> None:
    raw = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": 'say {"start_within": 3}'}]})
    assert decode(Api.CHAT, raw).body == raw


@pytest.mark.parametrize("value", [0, -1, "soon", "", [], {}, True, 1e9, "86401", "1_0"])
def test_start_within_of_another_form_is_rejected_by_name(value: object) -> None:
    with pytest.raises(Rejected) as caught:
        decode(Api.CHAT, body(value))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "start_within", "bad_timeout")


def test_start_within_header_is_read_or_rejected_by_name() -> None:
    assert parse_start_limit_s({b"x-stayfast-start-within": b"1.5s"}) == 1.5
    assert parse_start_limit_s({}) is None
    with pytest.raises(Rejected) as caught:
        parse_start_limit_s({b"x-stayfast-start-within": b"never"})
    assert caught.value.param == "x-stayfast-start-within"


@pytest.mark.parametrize("name", [b"start\\u005fwithin", b"\\u0073tart_within"])
def test_start_within_with_an_escaped_name_is_read_and_removed(name: bytes) -> None:
    request = decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}],"%b":2}' % name)
    assert request.start_within_s == 2
    assert "start_within" not in msgspec.json.decode(request.body)
