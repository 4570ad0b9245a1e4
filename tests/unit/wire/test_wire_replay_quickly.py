"""Streams of chat are put together quickly: the same bytes as the long way round, whatever the events hold."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import FROM_CACHE, Api
from stayfast.wire.decode import decode
from stayfast.wire.replay import _folded_chat
from stayfast.wire.transcode import transcoder

ASKED = decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """A chunk of one choice."""
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **more,
            "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}


def stream(events: list[dict[str, Any]]) -> bytes:
    """As it goes over the wire."""
    return b"".join(b"data: " + msgspec.json.encode(said) + b"\n\n" for said in events) + DONE


def slowly(data: bytes) -> bytes:
    """By the fold that puts whole answers together as they come."""
    coder = transcoder(Api.CHAT, ASKED, source_streams=True, upstream=FROM_CACHE)
    coder.feed(data)
    end = coder.finish()
    return end.data if end is not None else b""


WORDS = st.text(max_size=5)
DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, WORDS), st.builds(lambda text: {"role": "assistant", "content": text}, WORDS),
    st.builds(lambda text: {"reasoning_content": text}, WORDS), st.just({}), st.just({"content": None}),
    st.just({"refusal": "No."}),
    st.just({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]}))
EVENTS = st.lists(st.one_of(
    st.builds(event, DELTAS, st.sampled_from([None, None, "stop"]), st.sampled_from([0, 0, 0, 1])),
    st.builds(lambda text: event({"content": text}, system_fingerprint="fp", obfuscation="abc"), WORDS),
    st.just({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
             "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})), min_size=1, max_size=12)


@given(EVENTS)
def test_the_same_bytes(events: list[dict[str, Any]]) -> None:
    """Words, roles, tools, usage, several choices, in any order."""
    data = stream([event({"role": "assistant", "content": ""}), *events, event({}, "stop")])
    assert _folded_chat(data) == slowly(data)


def test_comments_are_passed_over() -> None:
    """They are no part of the answer."""
    data = stream([event({"content": "a"}), event({"content": "b"}), event({}, "stop")])
    assert _folded_chat(data.replace(b"data: ", b": ping\n\ndata: ", 2)) == slowly(data)


def test_other_frames_take_the_long_way() -> None:
    """Lines that end otherwise, events of several lines, names, and streams without an end."""
    data = stream([event({"content": "a"}), event({}, "stop")])
    for odd in (data.replace(b"\n", b"\r\n"), data.replace(b"data: {", b"event: x\ndata: {"), data.removesuffix(DONE),
                data.replace(b"data: {", b"data:{"), b""):
        assert _folded_chat(odd) is None
