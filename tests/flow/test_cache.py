"""Answers that are given twice, on virtual time: what is served, what is kept, and what never."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from stayfast.core.errors import Fault, Shed, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Api, CacheControl, Request
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing import Cut, Fail, Script, SendBytes, SendText, SimLoop, run
from stayfast.wire.request_body import decode
from tests.flow.cache_rig import HELLO, OTHER, CacheRig, strip_key
from tests.flow.rig import MODEL, Rig, chat, read, text_of

NO_CACHE, NO_STORE, ONLY_CACHED = CacheControl(no_cache=True), CacheControl(no_store=True), CacheControl(only_if_cached=True)


def test_cache_hit_takes_no_time_and_no_attempt() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        assert await rig.text() == "Hello"
        await asyncio.sleep(10)
        began_at = loop.now()
        reply = await rig.serve_request()
        key = rig.sink.facts_of(RequestDone)[0].cache_key
        assert key is not None
        assert (reply.upstream, reply.n_attempts) == ("(cache)", 0)
        assert reply.cache == f"hit; kind=exact; age=10; key={key.hex()}"
        assert text_of(await read(reply)) == "Hello"
        assert loop.now() == began_at
        assert rig.n_calls == 1
        assert rig.results == ["miss", "hit"]
        assert rig.sink.facts_of(RequestDone)[1].attempts == ()
        rig.check_clean()

    run(main)


def test_cache_hit_of_a_streamed_answer_as_json() -> None:
    """With its usage."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        await rig.text()
        await asyncio.sleep(0)
        reply = await rig.serve_request(chat(stream=False))
        whole = msgspec.json.decode(await read(reply))
        assert strip_key(reply.cache) == "hit; kind=exact; age=0"
        assert whole["object"] == "chat.completion"
        assert whole["choices"][0]["message"]["content"] == "Hello"
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens"] == 2

    run(main)


def test_cache_hit_of_a_whole_answer_as_a_stream() -> None:
    """Usage is in the stream exactly if the request has include_usage."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        await read(await rig.serve_request(chat(stream=False)))
        await asyncio.sleep(0)
        body = await read(await rig.serve_request())
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")
        assert text_of(body) == "Hello"
        assert b'"usage"' not in body
        with_usage = await read(await rig.serve_request(chat(stream_options={"include_usage": True})))
        assert b'"completion_tokens":2' in with_usage
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize(("script", "config"), [
    ([SendText("Hel"), Cut()], None),
    ([SendText("Hel"), Fail(Fault.RESET)], None),
    ([SendText("x" * 5000)], CacheConfig("exact", max_temperature=1, max_answer_bytes=1024)),
    ([SendBytes(b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":"length"}]}\n\n'), Cut()],
     None),
    ([SendBytes(b'data: {"id":"x","choices":[{"index":0,"delta":{"refusal":"No."},"finish_reason":"stop"}]}\n\n'), Cut()],
     None),
    ([SendBytes(b'data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f",'
          b'"arguments":"{}"}}]},"finish_reason":"stop"}]}\n\n'), Cut()], None),
], ids=["truncated", "reset", "too long", "length", "refusal", "tool call"])
def test_cache_stores_only_complete_text_answers(script: Script, config: CacheConfig | None) -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, script, config=config)
        for _ in range(2):
            with suppress(UpstreamFailed):
                await rig.text()
            await asyncio.sleep(1)
        assert rig.n_calls == 2
        assert rig.route_cache.store.n_entries == 0
        rig.check_clean()

    run(main)


def test_cache_is_separate_for_each_tenant() -> None:
    """Stored answers and calls in flight."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)
        for _ in range(2):
            answers = await asyncio.gather(rig.text(tenant="a"), rig.text(tenant="b"))
            assert list(answers) == ["Hello", "other"]
            await asyncio.sleep(0)
        assert sorted(map(str, rig.results)) == ["hit", "hit", "miss", "miss"]

    run(main)


def test_cache_answer_older_than_ttl_or_max_age_is_a_miss() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER, HELLO, config=CacheConfig("exact", ttl_s=60, max_temperature=1))
        assert await rig.text() == "Hello"
        await asyncio.sleep(30)
        assert await rig.text(control=CacheControl(max_age_s=40)) == "Hello"
        assert await rig.text(control=CacheControl(max_age_s=20)) == "other"
        await asyncio.sleep(61)
        assert await rig.text() == "Hello"
        assert rig.n_calls == 3

    run(main)


def test_cache_control_no_cache_no_store_only_if_cached() -> None:
    """no-cache makes a call and stores the answer; no-store does not store; only-if-cached makes no call."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER, [SendText("third")])
        with pytest.raises(Shed) as refused:
            await rig.text(control=ONLY_CACHED)
        assert (refused.value.status, refused.value.code, refused.value.is_final) == (504, "not_cached", True)
        assert await rig.text() == "Hello"
        await asyncio.sleep(0)
        assert await rig.text(control=NO_CACHE) == "other"
        await asyncio.sleep(0)
        assert await rig.text(control=ONLY_CACHED) == "other"
        reply = await rig.serve_request(control=NO_STORE)
        assert reply.cache == "bypass; why=no-store"
        assert text_of(await read(reply)) == "third"
        await asyncio.sleep(0)
        assert await rig.text() == "other"

    run(main)


def test_cache_temperature_above_the_limit_is_a_bypass() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER, config=CacheConfig("exact"))
        assert [await rig.text(chat(temperature=0.9)), await rig.text(chat(temperature=0.9))] == ["Hello", "other"]
        assert rig.results == ["bypass", "bypass"]
        assert rig.sink.facts_of(RequestDone)[0].notes == ("not for the cache: temperature",)
        await rig.text(chat(temperature=0))
        await asyncio.sleep(0)
        await rig.text(chat(temperature=0.0))
        assert rig.results[2:] == ["miss", "hit"]

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_cache_is_separate_for_each_dialect(stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        asked = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        anthropic = decode(Api.MESSAGES, msgspec.json.encode({**asked, "max_tokens": 9}))
        responses = decode(Api.RESPONSES, msgspec.json.encode({"model": MODEL, "stream": stream, "input": "hello"}))
        bodies = {}
        for request in (anthropic, responses, chat(stream=stream)):
            fresh = await read(await rig.serve_request(request))
            await asyncio.sleep(0)
            reply = await rig.serve_request(request)
            bodies[request.api] = await read(reply)
            assert strip_key(reply.cache) == "hit; kind=exact; age=0"
            if not stream:
                assert bodies[request.api] == fresh
        assert rig.n_calls == 3
        mark = {Api.MESSAGES: b'"end_turn"', Api.RESPONSES: b'"output_text"', Api.CHAT: b'"choices"'}
        assert all(mark[api] in body and b"Hello" in body for api, body in bodies.items())

    run(main)


def test_cache_off_on_another_route_adds_no_header() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        for _ in range(2):
            reply = await rig.serve()
            assert text_of(await read(reply)) == "Hello"
            assert reply.cache is None
        assert len(rig.sink.facts_of(AttemptDone)) == 2

    run(main)


def test_cache_control_ttl_shortens_the_lifetime() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)
        assert await rig.text(control=CacheControl(keep_s=10)) == "Hello"
        await asyncio.sleep(9)
        assert await rig.text() == "Hello"
        await asyncio.sleep(2)
        assert await rig.text() == "other"
        assert rig.results == ["miss", "hit", "miss"]

    run(main)


def test_cache_namespaces_are_separate() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER, HELLO)
        for namespace in ("a", "b", "", "a", "b", ""):
            await rig.text(control=CacheControl(namespace=namespace))
            await asyncio.sleep(1)
        assert rig.results == ["miss", "miss", "miss", "hit", "hit", "hit"]

    run(main)


def test_cache_key_ignores_member_order_and_blanks() -> None:
    """For the same tenant, with the same parameters, and within the temperature of the route."""

    async def main(loop: SimLoop) -> None:
        def asks(question: str, *, is_turned: bool = False, **more: object) -> Request:
            system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": question}
            body = {"model": MODEL, "messages": [system, dict(reversed(user.items())) if is_turned else user], **more}
            return decode(Api.CHAT, msgspec.json.encode(body))

        rig = CacheRig(loop, *[HELLO] * 9, config=CacheConfig("exact", max_temperature=0.5))
        for question in ("one", "two", "three"):
            await rig.text(asks(question, temperature=0))
        again = await rig.serve_request(asks(" three", temperature=0))
        assert strip_key(again.cache) == "hit; kind=exact; age=0"
        turned = await rig.serve_request(asks("three", is_turned=True, temperature=0))
        assert turned.cache == again.cache
        await rig.text(asks("three", temperature=0), tenant="another")
        await rig.text(asks("three", temperature=0, max_tokens=5))
        for _ in range(3):
            await rig.text(asks("three"))
        assert rig.results[-5:] == ["miss", "miss", "bypass", "bypass", "bypass"]

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_cache_stores_no_degraded_answer(stream: bool) -> None:
    """Neither the answer of a fallback nor a template."""

    async def main(loop: SimLoop) -> None:
        cache = CacheConfig("exact", max_temperature=1.0)
        rig = Rig(loop, [[Fail(status=500)], HELLO], [OTHER], n_fallback=1, cache=cache)
        other = Rig(loop, [[Fail(status=500)], HELLO], template="Later.", cache=cache)
        for each, how, text in ((rig, "fallback", b"other"), (rig, None, b"Hel"), (other, "template", b"Later"),
                                (other, None, b"Hel")):
            reply = await each.serve(chat(stream=stream))
            assert text in await read(reply)
            assert reply.degraded == how
            await asyncio.sleep(0.1)
        assert [done.cache for done in (*rig.sink.facts_of(RequestDone), *other.sink.facts_of(RequestDone))] == ["miss"] * 4

    run(main)
