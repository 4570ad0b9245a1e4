"""Whole answers that are fetched as streams, over HTTP: where an upstream will not have it, they are fetched whole again."""

import json
import threading
from typing import Any

import pytest

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api
from stayfast.upstreams import dialect
from stayfast.wire.request_body import encode
from tests.server.upstream_rig import HEAD, LAST, bench, framed, plain, rest
from tests.unit.http.client.peers import Talk, on_sockets
from tests.unit.wire.recorded import ROLE, chunk, sse

pytestmark = pytest.mark.sockets

REFUSAL = plain("400 Bad Request", b'{"error":{"message":"Your organization must be verified to stream this model.",'
                b'"type":"invalid_request_error","param":"stream","code":"unsupported_value"}}')
WHOLE = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}]}
USAGE = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
         "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}


async def asked(talk: Talk) -> tuple[bool, bool]:
    """Whether the next request is for a stream, and for its usage."""
    body = json.loads((await talk.request()).split(b"\r\n\r\n", 1)[1])
    return body.get("stream", False), body.get("stream_options") == {"include_usage": True}


def test_dialect_refused_stream_falls_back_to_whole_answer() -> None:
    """Refused by name, the same is asked again without it, within the same attempt; from then on at once."""

    async def main() -> None:
        async with bench() as it:
            opening = it.open(stream=False, wants_parts=True)
            talk = await it.peer.accept()
            assert await asked(talk) == (True, True)
            talk.say(REFUSAL)
            for again in (False, True):
                if again:
                    opening = it.open(stream=False, wants_parts=True)
                assert await asked(talk) == (False, False)
                talk.say(plain("200 OK", json.dumps(WHOLE).encode()))
                found = b"".join([one.data for one in await rest(await opening)])
                assert json.loads(found) == WHOLE

    on_sockets(main)


def test_dialect_other_refusal_is_passed_on() -> None:
    """What has nothing to do with the stream is not asked twice."""

    async def main() -> None:
        async with bench() as it:
            opening = it.open(stream=False, wants_parts=True)
            talk = await it.peer.accept()
            await talk.request()
            talk.say(plain("400 Bad Request", b'{"error":{"message":"temperature is too high","param":"temperature"}}'))
            with pytest.raises(UpstreamFailed) as failed:
                await opening
            assert failed.value.upstream_status == 400

    on_sockets(main)


@pytest.mark.parametrize("has_usage", [True, False])
def test_dialect_stream_without_usage_falls_back_to_whole_answers(*, has_usage: bool) -> None:
    """Its whole answers do: after the first one they are fetched whole again."""

    async def main() -> None:
        async with bench() as it:
            events = [ROLE, chunk({"content": "well"}), chunk({}, "stop"), *([USAGE] if has_usage else [])]
            opening = it.open(stream=False, wants_parts=True)
            talk = await it.peer.accept()
            assert await asked(talk) == (True, True)
            talk.say(HEAD + framed(sse(*events) + b"data: [DONE]\n\n") + LAST)
            body = json.loads(b"".join([one.data for one in await rest(await opening)]))
            assert body["choices"][0]["message"]["content"] == "well"
            assert body.get("usage") == (USAGE["usage"] if has_usage else None)
            opening = it.open(stream=False, wants_parts=True)
            assert await asked(talk) == (has_usage, has_usage)
            talk.say(plain("200 OK", json.dumps(WHOLE).encode()))  # also where a stream was asked for
            assert json.loads(b"".join([one.data for one in await rest(await opening)])) == WHOLE

    on_sockets(main)


def test_dialect_streaming_client_is_unaffected() -> None:
    """Parts are for whole answers; embeddings have none."""

    async def main() -> None:
        async with bench() as it:
            opening = it.open(stream=True, wants_parts=True)
            talk = await it.peer.accept()
            assert await asked(talk) == (True, False)
            talk.hang_up()
            with pytest.raises(UpstreamFailed):
                await opening
        async with bench(Api.EMBEDDINGS) as it:
            opening = it.open(Api.EMBEDDINGS, stream=False, wants_parts=True)
            talk = await it.peer.accept()
            assert await asked(talk) == (False, False)
            talk.hang_up()
            with pytest.raises(UpstreamFailed):
                await opening

    on_sockets(main)


@pytest.mark.parametrize(("spoken", "is_elsewhere"), [(Api.MESSAGES, True), (Api.CHAT, False)])
def test_dialect_large_request_is_translated_in_thread(spoken: Api, is_elsewhere: bool,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on in its own protocol needs no thread."""
    threads = []

    def encode_noting(*args: Any, **fields: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*args, **fields)

    monkeypatch.setattr(dialect, "LARGE_REQUEST_BYTES", 10)
    monkeypatch.setattr(dialect, "encode", encode_noting)

    async def main() -> None:
        async with bench(spoken) as it:
            opening = it.open(stream=False)
            talk = await it.peer.accept()
            await talk.request()
            talk.say(plain("400 Bad Request", b"{}"))
            with pytest.raises(UpstreamFailed):
                await opening
        assert [thread is not threading.current_thread() for thread in threads] == [is_elsewhere]

    on_sockets(main)
