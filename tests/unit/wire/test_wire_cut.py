"""An answer that is ended early, at any byte, is a proper answer of its protocol with the reason of a met length limit."""

import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stayfast.core.types import AnswerSummary, Api
from stayfast.wire.json_input import can_translate
from stayfast.wire.local_answers import render_text_answer
from stayfast.wire.transcode import transcoder
from tests.unit.wire.recorded import WHOLE_STREAMS, events, request

CLIENTS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
CASES = [pytest.param(name, client, stream, id=f"{name}-{client.value}-{'stream' if stream else 'whole'}")
         for name, recorded in WHOLE_STREAMS.items() if recorded.n_content
         for client in CLIENTS if can_translate(client, recorded.api)
         for stream in (True, False)]
SDK_EVENTS: dict[Api, TypeAdapter[object]] = {
    Api.CHAT: TypeAdapter(ChatCompletionChunk), Api.COMPLETIONS: TypeAdapter(Completion),
    Api.RESPONSES: TypeAdapter(ResponseStreamEvent), Api.MESSAGES: TypeAdapter(RawMessageStreamEvent)}
SDK_WHOLE: dict[Api, TypeAdapter[object]] = {
    Api.CHAT: TypeAdapter(ChatCompletion), Api.COMPLETIONS: TypeAdapter(Completion), Api.RESPONSES: TypeAdapter(Response),
    Api.MESSAGES: TypeAdapter(Message)}
LENGTH = ("length", "max_tokens", "max_output_tokens")


def read_again(client: Api, body: bytes, *, stream: bool) -> AnswerSummary:
    """What our own reader makes of an answer in this dialect."""
    coder = transcoder(client, request(client, stream=stream), source_streams=stream, upstream="again")
    coder.feed(body)
    coder.finish()
    return coder.sight


def check(client: Api, body: bytes, *, stream: bool) -> None:
    """The vendor's own types take every event of ours, or the body."""
    if stream:
        for event in events(body):
            if client is Api.COMPLETIONS:  # the SDK's type has no name for a chunk without a reason, which all servers send
                event["choices"] = [{**each, "finish_reason": each["finish_reason"] or "stop"} for each in event["choices"]]
            SDK_EVENTS[client].validate_python(event)
    else:
        SDK_WHOLE[client].validate_json(body)


@pytest.mark.parametrize(("name", "client", "stream"), CASES)
def test_every_cut_is_a_proper_end(name: str, client: Api, stream: bool) -> None:
    """At each byte behind the first content: every part so far, an end that its readers take, and never a second one."""
    recorded = WHOLE_STREAMS[name]
    n_cuts = 0
    for at in range(len(recorded.data)):
        coder = transcoder(recorded.api, request(client, stream=stream), source_streams=True, upstream="up", created_at=7)
        before = coder.feed(recorded.data[:at])
        if not coder.sight.n_content or coder.has_ended:
            continue
        had_reason = coder.sight.finish_reason
        ending = coder.cut()
        assert ending is not None
        assert (coder.sight.is_cut, coder.sight.is_complete, coder.has_ended) == (True, False, True)
        assert coder.sight.finish_reason == had_reason if had_reason else coder.sight.finish_reason in LENGTH
        body = (before.data if before is not None else b"") + ending.data
        check(client, ending.data, stream=stream)
        again = read_again(client, body, stream=stream)
        assert again.failure is None
        assert again.is_complete
        assert coder.cut() is None
        assert coder.feed(recorded.data[at:]) is None
        n_cuts += 1
    assert n_cuts > 10


def test_nothing_is_cut_that_has_ended() -> None:
    """A whole answer has its end; so has one that failed."""
    for recorded in WHOLE_STREAMS.values():
        coder = transcoder(recorded.api, request(recorded.api), source_streams=True, upstream="up")
        coder.feed(recorded.data)
        coder.finish()
        assert coder.cut() is None
        assert not coder.sight.is_cut


def test_half_a_document_is_no_answer() -> None:
    """An upstream's answer in one piece cannot be cut."""
    coder = transcoder(Api.CHAT, request(Api.CHAT, stream=False), source_streams=False, upstream="up")
    coder.feed(b'{"choices":[')
    assert coder.cut() is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_recited_answer_is_one(client: Api, stream: bool) -> None:
    """A text of ours, as its readers expect an answer: whole, stopped by itself, of no tokens."""
    body = render_text_answer(request(client, stream=stream), "Läter.\n", answer_id="req_1", created_at=7)
    check(client, body, stream=stream)
    sight = read_again(client, body, stream=stream)
    assert sight.is_complete
    assert sight.failure is None
    assert sight.finish_reason in ("stop", "end_turn", "completed")
    assert sight.usage is None or sight.usage.output == 0
    text = body.decode() if not stream else "".join(msgspec.json.encode(event).decode() for event in events(body))
    assert "Läter." in text


def test_only_text_is_recited() -> None:
    """An embeddings answer cannot hold a template's text."""
    with pytest.raises(ValueError, match="hold no text"):
        render_text_answer(request(Api.EMBEDDINGS), "x", answer_id="r", created_at=0)
