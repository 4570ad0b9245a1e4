"""Whole answers from stored events, and the marks of their streams."""

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.wire.jobs.collected_answer import collect_events, encode_reset, is_end_marker, renumber_event


def chunk(**fields: object) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                                  "choices": [choice]})


def test_collect_events_of_a_chat_gives_the_whole_body() -> None:
    """However the events are cut, and with other blocks between them."""
    stream = chunk(role="assistant", content="") + b": ping\n\n" + chunk(content="four ") + chunk(content="words")
    body = collect_events(Api.CHAT, [stream[:50], stream[50:90], stream[90:], b"data: [DONE]\n\n"])
    assert body is not None
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == "four words"


def test_collect_events_of_something_else_is_none() -> None:
    """An error event is no answer."""
    assert collect_events(Api.CHAT, [b'data: {"error": {"message": "no"}}\n\n', b"data: [1]\n\n"]) is None


@pytest.mark.parametrize(("api", "error"), [
    (Api.CHAT, b'data: {"error": {"message": "no"}}\n\n'),
    (Api.COMPLETIONS, b'data: {"error": {"message": "no"}}\n\n'),
    (Api.MESSAGES, b'event: error\ndata: {"type": "error", "error": {"type": "api_error", "message": "no"}}\n\n'),
    (Api.RESPONSES, b'event: error\ndata: {"type": "error", "code": "no", "message": "no"}\n\n')])
def test_collect_events_that_end_in_an_error_is_none(api: Api, error: bytes) -> None:
    """Also after a part of an answer."""
    assert collect_events(api, [error]) is None
    if api is Api.CHAT:
        assert collect_events(api, [chunk(role="assistant", content="half"), error]) is None


@pytest.mark.parametrize(("api", "data", "name", "is_end"), [
    (Api.CHAT, b"[DONE]", b"", True), (Api.CHAT, b"{}", b"", False), (Api.COMPLETIONS, b"[DONE]", b"", True),
    (Api.MESSAGES, b"{}", b"message_stop", True), (Api.MESSAGES, b"{}", b"message_delta", False),
    (Api.RESPONSES, b"{}", b"response.completed", True), (Api.RESPONSES, b"{}", b"response.created", False)])
def test_is_end_marker_by_dialect(api: Api, data: bytes, name: bytes, *, is_end: bool) -> None:
    """What ends a stream of each protocol."""
    assert is_end_marker(api, data, name) is is_end


def test_renumber_event_replaces_the_sequence_number_only() -> None:
    """Events without one stay as they are."""
    event = b'{"type":"response.created","sequence_number":0,"x":{"sequence_number":1}}'
    renumbered = msgspec.json.decode(renumber_event(event, 7))
    assert renumbered == {"type": "response.created", "sequence_number": 7, "x": {"sequence_number": 1}}
    assert renumber_event(b"[1]", 7) == b"[1]"
    assert renumber_event(b"{", 7) == b"{"


def test_encode_reset_names_the_epoch() -> None:
    """An event of its own name."""
    assert encode_reset(3) == b'event: reset\ndata: {"type":"reset","epoch":3}\n\n'
