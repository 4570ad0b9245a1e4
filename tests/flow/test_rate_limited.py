"""A provider's own limits: a call beyond them is not made."""

import pytest

from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import AttemptDone
from stayfast.policy.admission.quota import QuotaConfig, TenantQuota
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Script, ScriptedUpstream, SendText, SimLoop, run
from stayfast.upstreams.rate_limited import RateLimitedUpstream, UpstreamRate
from tests.flow.rig import Rig, chat, read

HELLO: list[Script] = [[SendText("hello")]]


def limited(loop: SimLoop, name: str, config: QuotaConfig) -> RateLimitedUpstream:
    rate = UpstreamRate(name, TenantQuota(config, loop.now()), loop)
    return RateLimitedUpstream(ScriptedUpstream(name, HELLO, loop), rate, loop)


def test_rate_limited_call_beyond_the_limit_goes_to_another_upstream() -> None:
    """Two a minute at the first."""
    async def main(loop: SimLoop) -> None:
        first = limited(loop, "first", QuotaConfig(requests_per_minute=2))
        second = ScriptedUpstream("second", HELLO, loop)
        rig = Rig(loop, upstreams=(first, second), retry=RetryConfig(max_attempts=3), in_turn=True)
        for _ in range(4):
            await read(await rig.serve())
        assert [(done.upstream, done.upstream_status) for done in rig.sink.facts_of(AttemptDone)] == [
            ("first", None), ("first", None), ("first", 429), ("second", None), ("second", None)]

    run(main)


def test_rate_limited_only_upstream_is_a_429_with_the_wait() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=(limited(loop, "only", QuotaConfig(requests_per_minute=2)),))
        for _ in range(2):
            await read(await rig.serve())
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert failed.value.upstream_status == 429
        assert failed.value.retry_after_s == pytest.approx(30.0)
        assert "limit of 2 requests per minute" in failed.value.message

    run(main)


def test_rate_limited_tokens_are_charged_as_used() -> None:
    """Reserved are the prompt and max_tokens; the answer reports 11 tokens."""
    async def main(loop: SimLoop) -> None:
        upstream = limited(loop, "only", QuotaConfig(tokens_per_minute=1000))
        rig = Rig(loop, upstreams=(upstream,))
        await read(await rig.serve(chat(max_tokens=500, stream_options={"include_usage": True})))
        level, _ = upstream.rate.quota.levels(loop.now())["tokens_per_minute"]
        assert 950 < level < 1000

    run(main)


def test_upstream_rate_report_of_less_lowers_the_level() -> None:
    """Another program uses the same key. A report of more, or an older one, changes nothing."""
    loop = SimLoop()
    config = QuotaConfig(requests_per_minute=100, tokens_per_minute=10_000)
    rate = UpstreamRate("u", TenantQuota(config, 0.0), loop, n_gateways=lambda: 2)
    rate.correct({"x-ratelimit-remaining-requests": "60", "x-ratelimit-remaining-tokens": "20000"}, 5.0)
    levels = rate.quota.levels(loop.now())
    assert levels["requests_per_minute"][0] == pytest.approx(80.0)  # its half of the difference
    assert levels["tokens_per_minute"][0] == pytest.approx(10_000.0)
    rate.correct({"x-ratelimit-remaining-requests": "10"}, 4.0)
    assert rate.quota.levels(loop.now())["requests_per_minute"][0] == pytest.approx(80.0)
    loop.close()
