"""Arbitrary bytes and almost-right JSON: refusals and failures, never another exception."""

import json
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import CLIENT_APIS, Api, Request
from stayfast.wire import sse
from stayfast.wire.errors import encode_error, encode_error_event, failure_of_response
from stayfast.wire.request_body import can_translate, check_json_bounds, decode, encode, parse_conversation
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.full_requests import FULL
from tests.unit.wire.recorded import STREAMS, body, request
from tests.unit.wire.whole_answers import ANSWERS

NUMBER = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
LEAF = st.none() | st.booleans() | NUMBER | st.text(max_size=8)
JSON = st.recursive(LEAF,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                    max_leaves=8)
TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
FRAGMENT = st.sampled_from([b"data: ", b"event: ", b"error", b"\n", b"\r", b"\n\n", b"\r\n\r\n", b": c", b"[DONE]", b"{}",
                            b'{"choices":[{"index":0,"delta":{"content":"x"}}]}', b'{"error":{"code":3}}',
                            b'{"type":"message_stop"}', b'{"type":"content_block_delta","index":0,"delta":{}}',
                            b'{"type":"response.created","response":{}}', b"\xff", b"\xef\xbb\xbf"]) | st.binary(max_size=9)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside `value`."""
    found = [here]
    if isinstance(value, dict):
        found += [path for key, inner in value.items() for path in paths(inner, (*here, key))]
    if isinstance(value, list):
        found += [path for at, inner in enumerate(value) for path in paths(inner, (*here, at))]
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """`value` with `new` at `path`."""
    if not path:
        return new
    if isinstance(value, dict):
        return value | {path[0]: replaced(value[path[0]], path[1:], new)}
    return [replaced(inner, path[1:], new) if at == path[0] else inner for at, inner in enumerate(value)]


def attempt(api: Api, raw: bytes) -> Request | None:
    """Decode; a refusal is a fine answer."""
    with suppress(Rejected):
        return decode(api, raw)
    return None


@settings(max_examples=200, deadline=None)
@given(api=st.sampled_from(sorted(CLIENT_APIS)),
       raw=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_decode_any_bytes_is_decoded_or_rejected(api: Api, raw: bytes) -> None:
    """Any bytes and any JSON give a request or a refusal."""
    attempt(api, raw)


@settings(max_examples=400, deadline=None)
@given(api=st.sampled_from(TALKERS), data=st.data())
def test_encode_any_decoded_request_is_translated_or_rejected(api: Api, data: st.DataObject) -> None:
    """One value of a full request replaced by anything: no translation crashes, and each makes valid JSON."""
    said = {"model": "m", **FULL[api]}
    path = data.draw(st.sampled_from(paths(said)[1:]))
    asked = attempt(api, json.dumps(replaced(said, path, data.draw(JSON))).encode())
    if asked is None:
        return
    for to in TALKERS:
        with suppress(Rejected):
            json.loads(encode(asked, to, "up", stream=True, want_usage=True))
    with suppress(Rejected):
        assert parse_conversation(asked).api is api


@settings(max_examples=300, deadline=None)
@given(source=st.sampled_from((*TALKERS, Api.COMPLETIONS)), data=st.data())
def test_transcode_any_stream_never_raises(source: Api, data: st.DataObject) -> None:
    """Fragments of protocols in any order give chunks, and an end that is whole or an UpstreamFailed."""
    client = data.draw(st.sampled_from([api for api in (*TALKERS, Api.COMPLETIONS) if can_translate(api, source)]))
    reads = data.draw(st.lists(st.lists(FRAGMENT, max_size=6).map(b"".join), max_size=6))
    coder = make_transcoder(source, request(client, stream=data.draw(st.booleans())), source_streams=True, upstream="up")
    for read in reads:
        coder.feed(read)
    coder.finish()
    assert coder.summary.is_complete is (coder.summary.failure is None)
    assert coder.summary.failure is None or isinstance(coder.summary.failure, UpstreamFailed)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(STREAMS)), data=st.data())
def test_transcode_recorded_streams_with_one_value_replaced(name: str, data: st.DataObject) -> None:
    """An event with a wrong type is passed, dropped or a failure; nothing raises."""
    recorded = STREAMS[name]
    client = data.draw(st.sampled_from([api for api in TALKERS if can_translate(api, recorded.api)] or [recorded.api]))
    blocks = recorded.data.split(b"\n\n")
    at = data.draw(st.integers(0, len(blocks) - 1))
    head, brace, tail = blocks[at].partition(b"{")
    if brace:
        try:
            said = json.loads(brace + tail)
        except ValueError:
            return
        path = data.draw(st.sampled_from(paths(said)))
        blocks[at] = head + json.dumps(replaced(said, path, data.draw(JSON))).encode()
    coder = make_transcoder(recorded.api, request(client, stream=data.draw(st.booleans())), source_streams=True,
                            upstream="up")
    coder.feed(b"\n\n".join(blocks))
    coder.finish()
    assert coder.summary.is_complete is (coder.summary.failure is None)


@settings(max_examples=200, deadline=None)
@given(source=st.sampled_from(TALKERS), client=st.sampled_from(TALKERS), data=st.data())
def test_transcode_whole_answers_with_one_value_replaced(source: Api, client: Api, data: st.DataObject) -> None:
    """An answer with a wrong type is translated or a failure; nothing raises."""
    path = data.draw(st.sampled_from(paths(ANSWERS[source])))
    coder = make_transcoder(source, request(client), source_streams=False, upstream="up")
    coder.feed(json.dumps(replaced(ANSWERS[source], path, data.draw(JSON))).encode())
    last = coder.finish()
    assert (last is None) is (coder.summary.failure is not None)
    if last is not None:
        json.loads(last.data)


@settings(max_examples=150, deadline=None)
@given(source=st.sampled_from(Api), status=st.integers(300, 599), raw=st.binary(max_size=20) | JSON.map(
    lambda value: json.dumps({"error": value, "type": "error"}).encode()), after=st.text(max_size=8))
def test_from_response_any_error_response(source: Api, status: int, raw: bytes, after: str) -> None:
    """Any error response becomes one in every dialect: a status of an error and a body of JSON."""
    error = failure_of_response("up", source, status, {"retry-after": after}, raw, now_wall=0.0)
    for api in Api:
        shown, _, out = encode_error(error, api, "r")
        assert 400 <= shown < 600
        json.loads(out)
        assert encode_error_event(error, api, "r").endswith(b"\n\n")


@settings(max_examples=200, deadline=None)
@given(reads=st.lists(st.lists(FRAGMENT, max_size=5).map(b"".join), max_size=6))
def test_splitter_loses_no_byte(reads: list[bytes]) -> None:
    """Returned and buffered bytes together are the input."""
    splitter = sse.EventSplitter()
    out = b""
    for read in reads:
        blocks = splitter.feed(read)
        if blocks:
            out += splitter.original_bytes(blocks, 0, len(blocks))
        for block in blocks:
            sse.parse_block(block)
    assert out + splitter.take_rest() == b"".join(reads)


@settings(max_examples=200, deadline=None)
@given(value=JSON, max_depth=st.integers(1, 6))
def test_check_depth_equals_parsed_depth(value: Any, max_depth: int) -> None:
    """The check without parsing agrees with a walk through the parsed value."""
    def depth(inner: Any) -> int:
        children = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else None
        return 0 if children is None else 1 + max(map(depth, children), default=0)

    raw = json.dumps(value, ensure_ascii=False).encode()
    try:
        check_json_bounds(raw, max_depth)
    except Rejected:
        assert depth(value) > max_depth
    else:
        assert depth(value) <= max_depth


@settings(max_examples=100, deadline=None)
@given(extra=st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=4))
def test_encode_new_model_keeps_every_unknown_value(extra: dict[str, Any]) -> None:
    """Every other member keeps its bytes when the model is replaced."""
    extra = {f"x-{name}": value for name, value in extra.items()}
    raw = body(Api.CHAT, **extra)
    before = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    after = msgspec.json.decode(encode(decode(Api.CHAT, raw), Api.CHAT, "up", stream=False), type=dict[str, msgspec.Raw])
    assert bytes(after.pop("model")) == b'"up"'
    assert {name: bytes(value) for name, value in after.items()} == {
        name: bytes(value) for name, value in before.items() if name != "model"}
