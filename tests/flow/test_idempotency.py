"""Requests with one `idempotency-key` are one request, in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from stayfast.core.errors import DeadlineExceeded, Rejected, StayfastError, UpstreamFailed
from stayfast.core.types import CacheControl, Request, Stage
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.exchange import Arrival, Exchange, Ledger
from stayfast.pipeline.stages.cache.idempotency import IdempotentAnswer, IdempotentAnswers
from stayfast.pipeline.stages.cache.lookup import Cache
from stayfast.pipeline.stages.relay import Reply
from stayfast.pipeline.timing.timeouts import RequestTimeouts, TimerWheel
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import MAX_KEYS, IdempotencyConfig
from stayfast.stores.memory import MemoryStore
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import CacheRig
from tests.flow.rig import MODEL, Rig, chat, read, text_of

HELLO: Script = [Wait(0.25), SendText("Hel"), Wait(0.1), SendText("lo")]
OTHER: Script = [Wait(0.25), SendText("other")]


def running_ledger(loop: SimLoop) -> Ledger:
    """The ledger of a request that is in its call."""
    ends_at = loop.now() + 60.0
    ledger = Ledger(loop, loop.now(), ends_at, RequestTimeouts(TimerWheel(loop), ends_at, 60.0), None, ends_at)
    ledger.enter(Stage.CALL)
    return ledger


class KeyRig(Rig):
    """A gateway whose route has no cache."""

    def __init__(self, loop: SimLoop, *scripts: Script, config: IdempotencyConfig | None = None) -> None:
        super().__init__(loop, scripts, idempotency=config)

    async def request(self, request: Request | None = None, key: str = "k", tenant: str | None = "acme",
                  control: CacheControl | None = None, more: tuple[tuple[str, str], ...] = ()) -> Reply:
        """Serve one request with this key."""
        arrival = Arrival("r", self.loop.now(), tenant, (("idempotency-key", key), *more), cache=control)
        return await self.gateway.serve(request or chat(), arrival)

    async def text(self, request: Request | None = None, key: str = "k", tenant: str | None = "acme",
                   control: CacheControl | None = None, more: tuple[tuple[str, str], ...] = ()) -> str:
        """What it says."""
        return text_of(await read(await self.request(request, key, tenant, control, more)))

    @property
    def n_calls(self) -> int:
        """Calls of the upstream."""
        return self.scripted[0].n_calls


@pytest.mark.parametrize("stream", [True, False])
def test_idempotency_key_repeats_share_a_call_and_then_its_answer(*, stream: bool) -> None:
    """Two requests at once and one after them: one call, the same bytes; after `ttl_s`, with another key or of another
    tenant, a new call.
    """

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO, OTHER)
        request = chat(stream=stream)

        async def body(key: str = "k", tenant: str = "acme") -> bytes:
            return await read(await rig.request(request, key, tenant))

        first, second = await asyncio.gather(body(), body())
        began_at = loop.now()
        third = await body()
        assert first == second == third
        assert loop.now() == began_at  # it needed no upstream
        assert rig.n_calls == 1
        await body(key="k2")
        await body(tenant="beta")
        assert rig.n_calls == 3
        await asyncio.sleep(rig.answers.config.ttl_s + 1)
        assert await body() != b""
        assert rig.n_calls == 4
        await asyncio.sleep(0.1)
        assert (rig.n_in_flight, rig.n_open, len(rig.calls)) == (0, 0, 0)

    run(main)


def test_idempotency_key_with_another_body_is_refused() -> None:
    """422 while the first request runs and while its answer is stored; also with another `anthropic-beta`. The retry count
    of an SDK and the trace headers are no part of the request.
    """

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO)
        reply = await rig.request()
        for _ in range(2):
            for other in (chat(temperature=0.5), chat(stream=False)):
                with pytest.raises(Rejected) as refused:
                    await rig.request(other)
                assert (refused.value.status, refused.value.code, refused.value.param) == (
                    422, "idempotency_key_reused", "idempotency-key")
            with pytest.raises(Rejected):
                await rig.request(more=(("anthropic-beta", "b"),))
            await read(reply)
        assert await rig.text(more=(("x-stainless-retry-count", "1"), ("traceparent", "t"))) == "Hello"
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize("failing", [[Fail(status=500)], [SendText("a"), Fail()]])
def test_idempotency_key_of_a_failed_request_can_be_used_again(failing: Script) -> None:
    """Errors are not stored; another body may come with the key."""

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, failing, HELLO, OTHER)
        with pytest.raises(StayfastError):
            await rig.text()
        assert await rig.text() == "Hello"
        again = KeyRig(loop, failing, OTHER)
        with pytest.raises(StayfastError):
            await again.text()
        assert await again.text(chat(temperature=0.5)) == "other"

    run(main)


def test_idempotency_key_of_a_client_that_left_can_be_used_again() -> None:
    """Its call was cancelled; the repeat makes a new one."""

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO)
        task = asyncio.create_task(rig.text())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (rig.n_in_flight, rig.n_open) == (0, 0)
        assert await rig.text() == "Hello"
        assert rig.n_calls == 2

    run(main)


def test_idempotency_key_of_a_running_request_that_cannot_be_shared_is_a_409() -> None:
    """The first request has not made its call yet."""

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO)

        delays_s = iter([1.0, 0.1, 1.0])

        class Slow(Cache):
            async def lookup(self, ex: Exchange) -> None:
                await asyncio.sleep(next(delays_s))

        rig.change_policy(cache=RouteCache(CacheConfig("exact"), MODEL, MemoryStore(1 << 20)))
        rig.gateway = replace(rig.gateway, cache=Slow(loop, rig.sink, {}))
        first = asyncio.create_task(rig.text())
        await asyncio.sleep(0.5)
        with pytest.raises(Rejected) as refused:
            await rig.request()
        assert (refused.value.status, refused.value.code) == (409, "idempotency_key_in_use")
        assert await rig.text() == "Hello"  # it asked a slow cache, too, and there was an answer when that was done
        assert await first == "Hello"
        assert await rig.text() == "Hello"
        assert rig.n_calls == 1

    run(main)


def test_idempotency_no_store_stores_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO, OTHER)
        assert [await rig.text(control=CacheControl(no_store=True)) for _ in range(2)] == ["Hello", "other"]

    run(main)


def test_idempotency_works_with_a_cache() -> None:
    """A repeat gets its own first answer, even if the request bypasses the cache."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)

        async def text(key: str, control: CacheControl | None = None) -> str:
            arrival = Arrival("r", loop.now(), "acme", (("idempotency-key", key),), cache=control)
            return text_of(await read(await rig.gateway.serve(chat(), arrival)))

        assert list(await asyncio.gather(text("a"), text("b"), text("a"))) == ["Hello"] * 3
        assert await text("c") == "Hello"
        fresh = CacheControl(no_cache=True)
        assert [await text("d", fresh) for _ in range(3)] == ["other"] * 3
        assert rig.scripted[0].n_calls == 2
        assert (rig.n_in_flight, rig.n_open) == (0, 0)

    run(main)


def test_idempotency_memory_is_bounded() -> None:
    """By bytes and by keys: the oldest go first, and an answer that is too long is not stored."""

    async def main(loop: SimLoop) -> None:
        ledger = running_ledger(loop)
        answers = IdempotentAnswers(IdempotencyConfig(max_bytes=10_000))
        for n in range(2 * MAX_KEYS):
            answers.begin(b"%d" % n, b"", ledger)
            answers.store_answer(b"%d" % n, IdempotentAnswer(bytes(1000), 0.0, None, None))
        assert repr(answers) == "<IdempotentAnswers: 10 keys, 10000 bytes>"
        for n in range(2 * MAX_KEYS):
            answers.begin(b"x%d" % n, b"", ledger)
        assert repr(answers) == f"<IdempotentAnswers: {MAX_KEYS} keys, 0 bytes>"
        answers.begin(b"y", b"", ledger)
        answers.store_answer(b"y", IdempotentAnswer(bytes(10_001), 0.0, None, None))
        seen = answers.get(b"y", 0.0)
        assert seen is not None
        assert seen.answer is None

    run(main)


def test_idempotency_running_key_survives_many_newer_ones() -> None:
    """It keeps its answer, and another body cannot share its call."""

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO)
        ledger = running_ledger(loop)
        first = asyncio.create_task(rig.text())
        await asyncio.sleep(0.1)
        for n in range(2 * MAX_KEYS):
            rig.answers.begin(b"%d" % n, b"", ledger)
            rig.answers.store_answer(b"%d" % n, IdempotentAnswer(bytes(10_000), 0.0, None, None))
        with pytest.raises(Rejected):
            await rig.request(chat(temperature=0.5))
        assert await first == await rig.text() == "Hello"
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize("is_kept", [False, True])
def test_idempotency_repeat_with_a_longer_deadline_makes_a_new_call(*, is_kept: bool) -> None:
    """The first request had less time than its answer takes; with and without a cache."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(1.0), SendText("Hello")]) if is_kept else Rig(loop, ([Wait(1.0), SendText("Hello")],))

        async def text(total_s: float) -> str:
            arrival = Arrival("r", loop.now(), "acme", (("idempotency-key", "k"),), total_s=total_s)
            return text_of(await read(await rig.gateway.serve(chat(), arrival)))

        found = await asyncio.gather(text(0.5), text(10.0), text(20.0), return_exceptions=True)
        assert isinstance(found[0], DeadlineExceeded)
        assert list(found[1:]) == ["Hello", "Hello"]
        assert rig.scripted[0].n_calls == 2
        assert (rig.n_in_flight, rig.n_open, len(rig.calls)) == (0, 0, 0)

    run(main)


@pytest.mark.parametrize("control", [None, CacheControl(no_cache=True)])
def test_idempotency_call_shared_with_the_cache_survives_its_maker(control: CacheControl | None) -> None:
    """Whatever the cache control of the first request was, the answer is stored for the key."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER, config=CacheConfig("exact", max_temperature=1.0, ttl_s=1.0))

        async def text() -> str:
            arrival = Arrival("r", loop.now(), "acme", (("idempotency-key", "k"),), cache=control)
            return text_of(await read(await rig.gateway.serve(chat(), arrival)))

        first, second = (asyncio.create_task(text()) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert await second == "Hello"
        await asyncio.sleep(5.0)
        assert await text() == "Hello"
        assert rig.scripted[0].n_calls == 1
        assert (rig.n_in_flight, rig.n_open) == (0, 0)

    run(main)


def test_idempotency_repeat_during_the_failure_of_the_call_makes_another() -> None:
    """In the turns of the loop before the first request handles the failure: no repeat gets a 409."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[[Fail(status=401)]] * 50)

        async def text(n_turns: int) -> str:
            for _ in range(n_turns):
                await asyncio.sleep(0)
            return text_of(await read(await rig.gateway.serve(chat(), Arrival("r", 0.0, "acme",
                                                                              (("idempotency-key", "k"),)))))

        found = await asyncio.gather(*[text(n_turns) for n_turns in range(12)], return_exceptions=True)
        assert {type(error) for error in found} == {UpstreamFailed}

    run(main)


def test_idempotency_forwarded_request_is_no_repeat() -> None:
    """The same request comes back through another gateway, with a hop count."""

    async def main(loop: SimLoop) -> None:
        rig = KeyRig(loop, HELLO)
        hop = (("x-stayfast-hop", "2"),)
        assert list(await asyncio.gather(rig.text(), rig.text(more=hop))) == ["Hello", "Hello"]
        assert rig.n_calls == 2

    run(main)


@pytest.mark.parametrize("cache", [None, CacheConfig("exact", max_temperature=1.0)])
def test_idempotency_retry_after_a_degraded_answer_makes_a_call(cache: CacheConfig | None) -> None:
    """The answer of a fallback is not stored for the key: the upstream of the route may be back."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)], HELLO], [OTHER], n_fallback=1, cache=cache)
        arrival = Arrival("r", loop.now(), "acme", (("idempotency-key", "k"),))
        texts = []
        for _ in range(2):
            texts.append(text_of(await read(await rig.gateway.serve(chat(), arrival))))
            await asyncio.sleep(0.1)
        assert texts == ["other", "Hello"]

    run(main)
