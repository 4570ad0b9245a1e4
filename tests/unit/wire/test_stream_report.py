"""The report in a stream's last event: one member more, and no other byte changed."""

import json

import pytest

from stayfast.core.types import Api
from stayfast.wire.stream_report import StreamReport, add_report

REPORT = StreamReport("req_1", "main", 2, {"call": 1.5, "total": 2.0}, "fallback")
SAID = (b'{"request_id":"req_1","upstream":"main","attempts":2,"timings_ms":{"call":1.5,"total":2.0},"degraded":"fallback"}')
CHUNK = b'{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"n":1.50}'
USAGE = b'{"id":"x","choices":[],"usage":{"prompt_tokens":1}}'
DELTA = b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}'
DONE = b'{"type":"response.completed","sequence_number":9,"response":{"id":"r","output":[ 1e3 ]}}'


@pytest.mark.parametrize(("api", "tail", "expected"), [
    (Api.CHAT, b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (CHUNK, USAGE),
     b"data: %b\n\ndata: %b,\"stayfast\":%b}\n\ndata: [DONE]\n\n" % (CHUNK, USAGE[:-1], SAID)),
    (Api.CHAT, b"data:%b\r\n\r\ndata: [DONE]\r\n\r\n" % CHUNK,
     b"data:%b,\"stayfast\":%b}\r\n\r\ndata: [DONE]\r\n\r\n" % (CHUNK[:-1], SAID)),
    (Api.COMPLETIONS, b": ping\n\ndata: %b\n\n" % CHUNK, b": ping\n\ndata: %b,\"stayfast\":%b}\n\n" % (CHUNK[:-1], SAID)),
    (Api.MESSAGES, b"event: message_delta\ndata: %b\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n" % DELTA,
     b"event: message_delta\ndata: %b,\"stayfast\":%b}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
     % (DELTA[:-1], SAID)),
    (Api.RESPONSES, b"event: response.completed\ndata: %b\n\n" % DONE,
     b"event: response.completed\ndata: %b,\"stayfast\":%b}}\n\n" % (DONE[:-2], SAID)),
])
def test_add_report_adds_one_member(api: Api, tail: bytes, expected: bytes) -> None:
    """In the last event that may hold it, whatever ends its lines; numbers keep their form."""
    assert add_report(api, tail, REPORT) == expected


@pytest.mark.parametrize(("api", "tail"), [
    (Api.CHAT, b""), (Api.CHAT, b"data: [DONE]\n\n"), (Api.CHAT, b'data: {"type":"step.done"}\n\n'),
    (Api.CHAT, b'data: {"choices":[\n\n'), (Api.CHAT, b'data: {"choices":7}\n\n'), (Api.CHAT, b'data: {"a":}\n\n'),
    (Api.MESSAGES, b'data: {"type":"message_stop"}\n\n'), (Api.RESPONSES, b'data: {"type":"response.completed"}\n\n'),
    (Api.RESPONSES, b'data: {"type":"response.completed","response":7}\n\n'), (Api.CHAT, b"data: {\"\xff\":[]}\n\n"),
])
def test_add_report_without_a_suitable_event_changes_nothing(api: Api, tail: bytes) -> None:
    """Typed events of turns, other JSON, half an event."""
    assert add_report(api, tail, REPORT) == tail


def test_add_report_replaces_an_existing_member() -> None:
    """Of two gateways the outer one reports to the client."""
    event = add_report(Api.CHAT, b'data: {"choices":[],"stayfast":{"upstream":"inner"}}\n\n', REPORT)
    assert json.loads(event[6:])["stayfast"]["upstream"] == "main"
