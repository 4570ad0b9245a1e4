"""Interleaved calls of a chat answer, for clients whose protocol has one open block at a time."""

import json

import pytest

from stayfast.core.types import AnswerSummary, Api
from stayfast.wire import tool_call_sequencer as in_turn
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import ROLE, Json, chunk, events, request, sse

CLIENTS = (Api.RESPONSES, Api.MESSAGES)
FINISHED = chunk({}, "tool_calls")


def begin(index: int, arguments: str = "") -> Json:
    """A chunk that begins a call."""
    return chunk({"tool_calls": [{"index": index, "id": f"c{index}", "type": "function",
                                  "function": {"name": f"f{index}", "arguments": arguments}}]})


def more(index: int, arguments: str) -> Json:
    """A chunk with more of a call's arguments."""
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})


INTERLEAVED = (begin(0), begin(1), more(0, '{"x":'), more(1, '{"y": "}"'), begin(2, "{}"), more(0, "1}"), more(1, "}"))


def relay(*chunks: Json, client: Api, stream: bool) -> tuple[bytes, AnswerSummary]:
    """The client's bytes for a chat answer, read event by event."""
    coder = make_transcoder(Api.CHAT, request(client, stream=stream), source_streams=True, upstream="up")
    parts = [coder.feed(sse(one)) for one in (ROLE, *chunks, FINISHED)]
    parts += [coder.feed(b"data: [DONE]\n\n"), coder.finish()]
    return b"".join(part.data for part in parts if part is not None), coder.summary


def calls_in(client: Api, body: bytes) -> list[tuple[str, str, Json]]:
    """Id, name and arguments of each call of a whole answer."""
    said = json.loads(body)
    if client is Api.MESSAGES:
        return [(block["id"], block["name"], block["input"]) for block in said["content"]]
    return [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in said["output"]]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
def test_sequencer_orders_interleaved_calls(client: Api, *, stream: bool) -> None:
    """Every call is complete, in the order of their beginnings, streamed or not."""
    body, summary = relay(*INTERLEAVED, client=client, stream=stream)
    assert summary.failure is None
    if stream:
        again = make_transcoder(client, request(client), source_streams=True, upstream="up")
        again.feed(body)
        last = again.finish()
        assert last is not None
        body = last.data
    assert calls_in(client, body) == [("c0", "f0", {"x": 1}), ("c1", "f1", {"y": "}"}), ("c2", "f2", {})]


def test_sequencer_delays_only_interleaved_deltas() -> None:
    """Consecutive calls and the open call are never delayed."""
    coder = make_transcoder(Api.CHAT, request(Api.MESSAGES, stream=True), source_streams=True, upstream="up")
    said = []
    for one in (begin(0, '{"x":'), more(0, "1}"), begin(1, '{"y":'), more(1, "2}")):
        part = coder.feed(sse(one))
        assert part is not None
        said.append(events(part.data)[-1]["delta"]["partial_json"])
    assert said == ['{"x":', "1}", '{"y":', "2}"]


@pytest.mark.parametrize("client", CLIENTS)
def test_sequencer_calls_without_arguments_wait_for_the_end(client: Api) -> None:
    """A call that never says its arguments cannot be known to be over: the next one follows when the answer ends."""
    body, summary = relay(begin(0), begin(1, '{"y": 2}'), client=client, stream=False)
    assert summary.failure is None
    assert calls_in(client, body) == [("c0", "f0", {}), ("c1", "f1", {"y": 2})]


@pytest.mark.parametrize("client", CLIENTS)
def test_sequencer_arguments_after_a_closed_call_fail(client: Api) -> None:
    """More arguments behind a whole object have no place: the answer fails instead of lying. White space is nothing."""
    for late, fault in ((" \n", None), ('{"z": 3}', "malformed")):
        _, summary = relay(begin(0, "{}"), begin(1, "{}"), more(0, late), client=client, stream=True)
        assert getattr(summary.failure, "fault", None) == fault


def test_sequencer_waiting_deltas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless second call behind one that never ends fails the answer."""
    monkeypatch.setattr(in_turn, "MAX_WAITING_CHARS", 1000)
    _, summary = relay(begin(0), begin(1), *[more(1, "x" * 50)] * 10, client=Api.MESSAGES, stream=True)
    assert getattr(summary.failure, "fault", None) == "malformed"
