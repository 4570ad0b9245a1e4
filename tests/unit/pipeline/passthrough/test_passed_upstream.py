"""The breaker of passed requests, and their place in the upstream's limit."""

import asyncio
from random import Random

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Shed
from stayfast.core.types import Api
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.pipeline.passthrough.upstream import PassedUpstream
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import RecordingSink
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.upstreams.passthrough.endpoint import PassedEndpoint
from stayfast.upstreams.state.upstream_state import UpstreamState


class SetClock(SystemClock):
    """A clock that the test sets."""

    at = 1000.0

    def now(self) -> float:
        return self.at


def passed(clock: SetClock, *, most: int = 2) -> tuple[PassedUpstream, UpstreamState]:
    sink, config, http = RecordingSink(), BreakerConfig(consecutive_failures=2), HttpConfig("http://127.0.0.1:9/v1")
    dialect = DialectUpstream("u", DialectConfig("openai", frozenset({Api.CHAT}), "k"),
                              HttpClient("u", http, sink=sink, clock=clock), clock)
    member = UpstreamState(dialect, LimitConfig(mode="fixed", max=most, max_waiting=1), config, Random(1), sink)
    return PassedUpstream(member, PassedEndpoint(dialect, http, sink, clock), config, Random(1), clock), member


def test_begin_call_after_failures_in_row_is_refused_except_probes() -> None:
    clock = SetClock()
    upstream, member = passed(clock)
    for _ in range(2):
        upstream.end_call(upstream.begin_call(), is_failed=True)
    with pytest.raises(Shed) as refused:
        upstream.begin_call()
    assert (refused.value.status, refused.value.code) == (503, "upstream_down")
    assert refused.value.retry_after_s == 10
    assert member.breaker.state is BreakerState.CLOSED  # LLM requests are not concerned
    clock.at += 10.5
    probe = upstream.begin_call()
    with pytest.raises(Shed):  # one probe at a time
        upstream.begin_call()
    upstream.end_call(probe, is_failed=False)
    upstream.end_call(upstream.begin_call(), is_failed=False)
    assert upstream.breaker.state is BreakerState.CLOSED


def test_discard_call_of_leaving_client_frees_the_probe() -> None:
    clock = SetClock()
    upstream, _ = passed(clock)
    for _ in range(2):
        upstream.end_call(upstream.begin_call(), is_failed=True)
    clock.at += 10.5
    upstream.discard_call(upstream.begin_call())
    upstream.begin_call()


def test_take_place_at_limit_waits_and_teaches_no_duration() -> None:
    async def main() -> None:
        upstream, member = passed(SetClock(), most=1)
        first = await upstream.take_place(2000.0, "a")
        waiting = asyncio.get_running_loop().create_task(upstream.take_place(2000.0, "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert member.n_waiting == 1
        with pytest.raises(Shed):  # the queue is full; a request of another tenant would evict the waiting one
            await upstream.take_place(2000.0, "b")
        upstream.leave_place(first)
        upstream.leave_place(await waiting)
        assert member.whole_limiter.n_in_flight == 0
        assert member.whole_limiter.throughput_per_s == 0  # no duration is known

    asyncio.run(main())
