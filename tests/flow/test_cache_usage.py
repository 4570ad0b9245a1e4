"""Stored answers have usage, whoever asked for it, on virtual time."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.lab.workloads.in_memory import BodyStream
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing import SendText, SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from tests.flow.cache_rig import CacheRig, strip_key
from tests.flow.dialects import DIALECTS, ask
from tests.flow.rig import Rig, read

TEXT = "The answer is forty-two."
INPUT = {Api.CHAT: "prompt_tokens", Api.RESPONSES: "input_tokens", Api.MESSAGES: "input_tokens"}
OUTPUT = {Api.CHAT: "completion_tokens", Api.RESPONSES: "output_tokens", Api.MESSAGES: "output_tokens"}


class SilentUpstream:
    """Reports no usage."""

    name = "silent"
    kind = "simulated"
    always_streams = False

    def can_serve(self, api: Api) -> bool:
        """All dialects."""
        return api.can_stream

    async def open(self, call: Call) -> AnswerStream:
        """The text, in the client's dialect, without usage."""
        body = render_text_answer(call.request, TEXT, answer_id="a", created_at=0)
        body = body.replace(b'"usage":', b'"other":')
        return BodyStream(call, body, self.name, source_streams=call.request.stream)

    def close(self) -> None:
        """Holds nothing."""


async def usage_of(rig: Rig, api: Api, **fields: Any) -> tuple[Any, str | None]:
    """The usage in a whole answer, and what the cache says."""
    reply = await rig.serve(ask(api, stream=False, **fields))
    try:
        return msgspec.json.decode(await read(reply)).get("usage"), strip_key(reply.cache)
    finally:
        reply.close()
        await asyncio.sleep(0)  # it is stored


async def stream(rig: Rig, api: Api, **fields: Any) -> bytes:
    """The body of a stream."""
    reply = await rig.serve(ask(api, stream=True, **fields))
    try:
        return await read(reply)
    finally:
        reply.close()
        await asyncio.sleep(0)  # it is stored


@pytest.mark.parametrize("api", DIALECTS)
def test_cache_whole_answer_of_a_stored_stream_has_the_upstreams_usage(api: Api) -> None:
    """Whose client did not request it, and did not get it."""
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("Hel"), SendText("lo")])
        streamed = await stream(rig, api)
        assert (b'"usage":{' in streamed) is (api is not Api.CHAT)
        usage, cache = await usage_of(rig, api)
        assert (cache or "").startswith("hit")
        assert (usage[INPUT[api]], usage[OUTPUT[api]]) == (10, 2)
        assert "stayfast_estimated" not in usage

    run(main)


@pytest.mark.parametrize("api", DIALECTS)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_cache_stored_answer_without_usage_gets_an_estimate(api: Api, is_streamed: bool) -> None:
    """Marked as one; SDKs read `usage.total_tokens` of each whole answer."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=[SilentUpstream()], cache=CacheConfig("exact", max_temperature=1.0))
        await (stream(rig, api) if is_streamed else usage_of(rig, api))
        usage, cache = await usage_of(rig, api)
        assert (cache or "").startswith("hit")
        assert (usage[INPUT[api]], usage[OUTPUT[api]]) == (6, 6)
        assert usage["stayfast_estimated"] is True
        assert api is Api.MESSAGES or usage["total_tokens"] == 12

    run(main)


def test_cache_stream_of_a_stored_answer_has_usage_only_on_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("Hel"), SendText("lo")])
        await usage_of(rig, Api.CHAT)
        assert b'"usage"' not in await stream(rig, Api.CHAT)
        last = (await stream(rig, Api.CHAT, stream_options={"include_usage": True})).split(b"\n\n")[-3]
        assert msgspec.json.decode(last.removeprefix(b"data: "))["usage"]["total_tokens"] == 12
        assert rig.n_calls == 1

    run(main)
