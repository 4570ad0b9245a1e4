"""Output limits of a route, on the real stages in virtual time."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Api, Request
from stayfast.pipeline.context.output_caps import OutputPaces, RouteCaps
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import IdempotencyConfig
from stayfast.policy.context.output_cap import CapConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, ScriptedUpstream, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import decode
from tests.flow.midstream_rig import HALT, ContinuingUpstream, failover_rig
from tests.flow.rig import Rig, chat, read

TTFT_S, TPOT_S, TOTAL_S = 0.4, 0.02, 3.0
HUGE = 100_000


class SteadyWriter(ScriptedUpstream):
    """Writes answers of the length that the prompt names, and remembers the limits that it was sent."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__("up", [[]], loop)
        self.limits: list[int | None] = []
        self.tpot_s = TPOT_S
        self.before: Script = []

    async def open(self, call: Call) -> AnswerStream:
        self.limits.append(call.request.max_output_tokens)
        n_words = int(msgspec.json.decode(call.request.body)["messages"][0]["content"])
        self.scripts = [[*self.before, Wait(TTFT_S), *[part for _ in range(n_words)
                                                       for part in (SendText("w "), Wait(self.tpot_s))]]]
        return await super().open(call)


def writer_rig(loop: SimLoop, config: CapConfig, *, cache: CacheConfig | None = None,
               retry: RetryConfig | None = None) -> tuple[Rig, SteadyWriter]:
    writer = SteadyWriter(loop)
    rig = Rig(loop, upstreams=[writer], cache=cache, retry=retry)
    rig.change_policy(cap=RouteCaps(config, OutputPaces()) if config.is_on else None)
    return rig, writer


def words(n_words: int, *, stream: bool = True, **fields: Any) -> Request:
    """A request for an answer of so many words."""
    return chat(stream=stream, messages=[{"role": "user", "content": str(n_words)}], **fields)


async def train(rig: Rig, *, stream: bool = True) -> None:
    """Answers of several lengths, without haste."""
    for n_words in range(20, 160, 7):
        await read(await rig.serve(words(n_words, stream=stream, max_tokens=HUGE), 30.0))


def last_request(rig: Rig) -> RequestDone:
    return rig.sink.facts_of(RequestDone)[-1]


@pytest.mark.parametrize("stream", [True, False])
def test_cap_fitted_to_the_deadline_ends_the_answer_in_time(stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await train(rig, stream=stream)
        began_at = loop.now()
        reply = await rig.serve(words(1000, stream=stream, max_tokens=HUGE), TOTAL_S)
        body = await read(reply)
        done = last_request(rig)
        expected = (TOTAL_S - TTFT_S - 0.25) / TPOT_S
        assert writer.limits[-1] == pytest.approx(expected, rel=0.1)
        assert loop.now() - began_at < TOTAL_S
        assert (reply.degraded, done.degraded, done.cut_by, done.finish_reason) == ("capped", "capped", "deadline", "length")
        assert b'"length"' in body
        assert done.notes == (f"up may write {writer.limits[-1]} tokens: what fits into the time left",)
        assert rig.n_in_flight == 0
    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_cap_that_is_off_leaves_the_answer_to_the_deadline(stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig())
        await train(rig, stream=stream)
        with pytest.raises(DeadlineExceeded):
            await read(await rig.serve(words(1000, stream=stream, max_tokens=HUGE), TOTAL_S))
        assert set(writer.limits) == {HUGE}
    run(main)


def test_cap_of_an_answer_that_ends_before_it_marks_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await train(rig)
        reply = await rig.serve(words(30, max_tokens=HUGE), TOTAL_S)
        await read(reply)
        assert writer.limits[-1] != HUGE
        assert (reply.degraded, last_request(rig).degraded, last_request(rig).cut_by) == (None, None, None)
    run(main)


def test_cap_of_unknown_pace_is_the_clients_own() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await read(await rig.serve(words(10, max_tokens=HUGE), TOTAL_S))
        assert writer.limits == [HUGE]
    run(main)


def test_cap_below_the_floor_is_not_set() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await train(rig)
        await read(await rig.serve(words(1, max_tokens=HUGE), TTFT_S + 0.5))
        assert writer.limits[-1] == HUGE
    run(main)


@pytest.mark.parametrize(("config", "fields", "n_words", "expected"), [
    (CapConfig(default_tokens=20), {}, 50, ("capped", "default", 20)),
    (CapConfig(default_tokens=20), {"max_tokens": 30}, 50, (None, "client", 30)),
    (CapConfig(max_tokens=20), {"max_tokens": 30}, 50, ("capped", "route", 20)),
    (CapConfig(max_tokens=20), {"max_tokens": 10}, 50, (None, "client", 10)),
    (CapConfig(default_tokens=20), {}, 10, (None, None, 20)),
    (CapConfig(), {"max_tokens": 10}, 50, (None, "client", 10)),
])
def test_cut_by_names_the_limit_that_ended_the_answer(config: CapConfig, fields: dict[str, Any], n_words: int,
                                                   expected: tuple[str | None, str | None, int]) -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, config)
        await read(await rig.serve(words(n_words, **fields)))
        done = last_request(rig)
        assert (done.degraded, done.cut_by, writer.limits[-1]) == expected
    run(main)


def test_capped_answer_is_not_stored() -> None:
    """The next equal request, with more time, gets an answer of its own."""
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True), cache=CacheConfig(mode="exact"))
        await train(rig)
        n_before = writer.n_calls
        for total_s in (TOTAL_S, 60.0):
            await read(await rig.serve(words(1000, max_tokens=HUGE, temperature=0), total_s))
            await asyncio.sleep(0.1)
        assert writer.n_calls == n_before + 2
        assert [done.cut_by for done in rig.sink.facts_of(RequestDone)[-2:]] == ["deadline", None]
        assert [done.cache for done in rig.sink.facts_of(RequestDone)[-2:]] == ["miss", "miss"]
    run(main)


@pytest.mark.parametrize(("total_s", "n_calls"), [(TOTAL_S, 1), (TOTAL_S - 0.6, 2), (60.0, 2)])
def test_fitted_call_is_shared_only_by_similar_deadlines(total_s: float, n_calls: int) -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True), cache=CacheConfig(mode="exact"))
        await train(rig)
        n_before = writer.n_calls
        first = asyncio.create_task(_serve_and_read(rig, TOTAL_S))
        await asyncio.sleep(0.1)
        await asyncio.gather(first, _serve_and_read(rig, total_s))
        assert writer.n_calls - n_before == n_calls
        assert rig.n_in_flight == 0
    run(main)


async def _serve_and_read(rig: Rig, total_s: float) -> None:
    await read(await rig.serve(words(1000, max_tokens=HUGE, temperature=0), total_s))


def test_capped_answer_is_not_given_to_a_repeat_with_the_same_key() -> None:
    """A client that repeats a request with its idempotency key and more time gets a whole answer."""
    async def main(loop: SimLoop) -> None:
        writer = SteadyWriter(loop)
        rig = Rig(loop, upstreams=[writer], idempotency=IdempotencyConfig())
        rig.change_policy(cap=RouteCaps(CapConfig(fit_deadline=True), OutputPaces()))
        await train(rig)
        for total_s in (TOTAL_S, 60.0):
            arrival = Arrival("r", loop.now(), "acme", (("idempotency-key", "k"),), total_s=total_s)
            await read(await rig.gateway.serve(words(500, max_tokens=HUGE), arrival))
            await asyncio.sleep(0.1)
        assert [done.cut_by for done in rig.sink.facts_of(RequestDone)[-2:]] == ["deadline", None]
    run(main)


def test_cap_of_a_later_attempt_is_lower() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True), retry=RetryConfig(max_attempts=2))
        await train(rig)
        writer.before = [Wait(0.8), Fail(Fault.RESET)]
        with pytest.raises(StayfastError):
            await read(await rig.serve(words(1000, max_tokens=HUGE), TOTAL_S))
        first, second = [limit for limit in writer.limits[-2:] if limit is not None]
        assert first - second >= 0.8 / TPOT_S * 0.9
    run(main)


def test_cap_is_lower_before_slow_answers_have_ended() -> None:
    """Three running answers become slow; the fourth request gets a lower limit while they run."""
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await train(rig)
        writer.tpot_s = 4 * TPOT_S
        running = [asyncio.create_task(read(await rig.serve(words(200, max_tokens=HUGE), 60.0))) for _ in range(3)]
        await asyncio.sleep(TTFT_S + 2.0)
        for _ in range(2):  # the first begins to measure, the second sees the speed
            running.append(asyncio.create_task(read(await rig.serve(words(200, max_tokens=HUGE), TOTAL_S))))
            await asyncio.sleep(1.0)
        await asyncio.gather(*running)
        assert writer.limits[-1] == pytest.approx((TOTAL_S - TTFT_S - 0.25) / (4 * TPOT_S), rel=0.15)
        assert [done.degraded for done in rig.sink.facts_of(RequestDone)[-5:]].count("capped") >= 1
    run(main)


def test_schema_longer_than_the_limit_is_refused_before_any_call() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(max_tokens=1000))
        schema = {"type": "object", "required": [f"name{n}" for n in range(30)]}
        fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
        with pytest.raises(Rejected) as caught:
            await rig.serve(words(5, max_tokens=40, **fields))
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "schema_exceeds_limit", "max_tokens")
        assert writer.n_calls == 0
        await read(await rig.serve(words(5, max_tokens=60, **fields)))
        assert rig.n_in_flight == 0
    run(main)


def test_cap_of_a_refresh_is_not_fitted() -> None:
    async def main(loop: SimLoop) -> None:
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True))
        await train(rig)
        reply = await rig.gateway.serve(words(10, max_tokens=HUGE), Arrival("req_1", loop.now(), total_s=TOTAL_S,
                                                                            role="refresh"))
        await read(reply)
        assert writer.limits[-1] == HUGE
    run(main)


def test_cap_of_many_answers_with_own_speeds_keeps_nearly_all_from_the_deadline() -> None:
    """At the 99th percentile at most one in fifty is cut, of which nearly all would be without it."""
    async def main(loop: SimLoop) -> None:
        rng = Random(3)
        rig, writer = writer_rig(loop, CapConfig(fit_deadline=True, percentile=99, reserve_s=0.5))
        await train(rig)
        n_cut = 0
        for _ in range(100):
            writer.tpot_s = TPOT_S * rng.uniform(0.9, 1.1)
            try:
                await read(await rig.serve(words(1000, max_tokens=HUGE), TOTAL_S))
            except DeadlineExceeded:
                n_cut += 1
        assert n_cut <= 2
        assert len(rig.sink.facts_of(AttemptDone)) == 120
    run(main)


def test_cap_holds_over_a_continuation() -> None:
    """The second half has what the first half left of the limit."""
    async def main(loop: SimLoop) -> None:
        first, second = ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop)
        rig = failover_rig(loop, first, second)
        rig.change_policy(cap=RouteCaps(CapConfig(max_tokens=20), OutputPaces()))
        await read(await rig.serve(chat(max_tokens=HUGE)))
        done = last_request(rig)
        sizes = [attempt.usage.output for attempt in done.attempts if attempt.usage is not None]
        assert sizes == [10, 8]  # the tokens of the first half are estimated from its bytes: 12
        assert (done.degraded, done.cut_by) == ("capped", "route")
    run(main)


def test_completions_without_a_limit_have_their_own_default() -> None:
    async def main(loop: SimLoop) -> None:
        rig, _ = writer_rig(loop, CapConfig(default_tokens=7))
        caps = rig.router.routes["m"].policy.cap
        assert caps is not None
        target, notes = rig.router.routes["m"].targets[0], list[str]()
        request = decode(Api.COMPLETIONS, b'{"model":"m","prompt":"a"}')
        assert caps.limit(request, target, 9.0, 0.0, role="", note=notes.append) is request
        assert notes == []
    run(main)
