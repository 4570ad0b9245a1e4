"""upstreams.simulated.provider: quotas, weather, cold starts, luck, counts, and that a run repeats."""

import asyncio
from random import Random
from typing import Any

import pytest

from stayfast.core.types import Api
from stayfast.lab.simulated import (
    PRESETS,
    ColdStart,
    GapConfig,
    Mixture,
    Provider,
    ProviderConfig,
    Regime,
    Regimes,
    RegimeState,
    SimulatedRequest,
    SlowdownConfig,
    StallConfig,
    Tariff,
    VendorQuota,
)
from stayfast.testing import SimLoop, run
from tests.unit.upstreams.simulated_rig import Heard, chat, hear, hear_for, hear_many

SLOW = ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.1, 0.0))


def test_simulated_first_token_and_pace_are_independent() -> None:
    """One second, then a tenth for each further chunk; the last one brings the end."""
    heard = run(lambda loop: hear(Provider("p", SLOW, loop), chat(4)))
    assert [at for at, _ in heard.parts] == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert heard.parts[-1][1].endswith(b"data: [DONE]\n\n")


def test_simulated_late_reader_gets_due_chunks() -> None:
    """A provider does not wait for its reader: chunks keep their instants."""
    async def main(loop: SimLoop) -> float:
        answering = Provider("p", SLOW, loop).start_call(chat(4))
        await answering.wait_head()
        await asyncio.sleep(5)
        while await answering.next() is not None:
            pass
        return loop.now()

    assert run(main) == 6.0


def test_simulated_bundles_tokens_in_writes() -> None:
    """Ten tokens by four are three chunks; two chunks a write are two writes, at the pace of their tokens."""
    config = ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.1, 0.0, tokens_per_chunk=4, chunks_per_write=2))
    heard = run(lambda loop: hear(Provider("p", config, loop), chat(10)))
    assert [at for at, _ in heard.parts] == pytest.approx([1.4, 1.6])
    assert heard.body.count(b'"content":"') == 3 + 1  # and the role


def test_simulated_head_can_precede_first_token() -> None:
    """With `head_share` 0.4 the head and the role come before the first content."""
    config = ProviderConfig(ttft=Mixture(1.0), head_share=0.4)
    heard = run(lambda loop: hear(Provider("p", config, loop), chat(1)))
    assert heard.head_at == pytest.approx(0.4)
    assert [(round(at, 6), b'"role"' in data) for at, data in heard.parts] == [(0.4, True), (1.0, False)]


def test_simulated_stalls_and_slowdowns_delay_chunks() -> None:
    """A stall before every chunk but the first; a sag from some point on."""
    stalled = ProviderConfig(gaps=GapConfig(0.1, 0.0), stalls=StallConfig(1.0, Mixture(2.0)))
    assert run(lambda loop: hear(Provider("p", stalled, loop), chat(3))).took_s == pytest.approx(4.2)
    sagging = ProviderConfig(gaps=GapConfig(0.1, 0.0), slowdown=SlowdownConfig(1.0, 0.25))
    took_s = run(lambda loop: hear(Provider("p", sagging, loop), chat(101))).took_s
    assert 10.0 < took_s <= 40.0


def test_simulated_run_repeats_by_seed() -> None:
    """Two runs of everything that draws have the same instants and bytes; another seed has others."""
    def story(seed: int) -> list[tuple[float, bytes]]:
        config = ProviderConfig("haiku-4.5-like", seed, stalls=StallConfig(0.05), slowdown=SlowdownConfig(0.2),
                                regimes=Regimes(Regime(5)),
                                tail_correlation=0.5, cold_start=ColdStart(10))

        async def main(loop: SimLoop) -> list[Heard]:
            asks = [(number * 0.7, SimulatedRequest(Api.CHAT, "m", True, session="s")) for number in range(40)]
            return await hear_many(loop, Provider("p", config, loop), asks)

        return [part for heard in run(main) for part in [(heard.head_at, b""), *heard.parts]]

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_simulated_request_number_fixes_draws() -> None:
    """Whatever was asked before, request 7 gets the latency of request 7."""
    async def main(loop: SimLoop) -> tuple[float, float]:
        config = ProviderConfig("gpt-4o-like")
        one, other = Provider("p", config, loop), Provider("p", config, loop)
        await hear(other, chat(3))
        return (await hear(one, chat(5, number=7))).head_at, (await hear(other, chat(5, number=7))).head_at

    first, second = run(main)
    assert first == pytest.approx(second)


def test_simulated_percentiles_match_closed_form() -> None:
    """Asked by the thousand, a provider has the percentiles that it says it has."""
    async def main(loop: SimLoop) -> list[float]:
        one = Provider("p", ProviderConfig("gpt-4o-mini-like", 3), loop)
        asks = [(number * 0.01, chat(1, stream=False)) for number in range(4000)]
        return sorted(heard.head_at for heard in await hear_many(loop, one, asks))

    took = run(main)
    ttft = PRESETS["gpt-4o-mini-like"].ttft
    assert took[2000] == pytest.approx(ttft.quantile(0.5), rel=0.03)
    assert took[3800] == pytest.approx(ttft.quantile(0.95), rel=0.05)


def test_simulated_tail_correlates_within_session() -> None:
    """Two requests of one session at one time are both in the tail with correlation rho; of two sessions, with none."""
    config = ProviderConfig(ttft=Mixture(0.1, tail_share=0.2, tail_median_s=10.0, tail_sigma=0.0), tail_correlation=0.5)

    def correlation(of: str) -> float:
        loop = SimLoop()
        provider, rng = Provider("p", config, loop), Random(1)
        pairs = []
        for number in range(20_000):
            sessions = (f"{number}", f"{number}" if of == "one" else f"{number}'")
            lucks = [provider.shared_luck(session, 0.0, rng) for session in sessions]
            pairs.append([(rng.random() if luck is None else luck) < 0.2 for luck in lucks])
        loop.close()
        both = sum(a and b for a, b in pairs) / len(pairs)
        means = [sum(pair[at] for pair in pairs) / len(pairs) for at in (0, 1)]
        assert means == pytest.approx([0.2, 0.2], abs=0.01)
        return (both - means[0] * means[1]) / 0.16

    assert correlation("one") == pytest.approx(0.5, abs=0.04)
    assert correlation("two") == pytest.approx(0.0, abs=0.04)


def test_simulated_cold_start_delays_all_requests() -> None:
    """The first request wakes it, the next ones wait for the same start; after a silence it is cold again."""
    cold = ColdStart(after_idle_s=100, container_min_s=2, container_max_s=2, load_min_s=3, load_max_s=3)

    async def main(loop: SimLoop) -> list[Heard]:
        one = Provider("p", ProviderConfig(cold_start=cold), loop)
        heard = await hear_many(loop, one, [(at, chat(1)) for at in (0, 4, 50, 149, 250)])
        assert one.counts.n_cold_starts == 2
        return heard

    assert [heard.head_at for heard in run(main)] == pytest.approx([5, 1, 0, 0, 5])


def test_simulated_regime_applies_to_all_requests() -> None:
    """In a brownout everything takes five times as long; in an outage everybody gets the vendor's overload answer."""
    regimes = Regimes(brownout=Regime(30, 5.0, 4.0, 0.0))

    async def main(loop: SimLoop) -> list[Heard]:
        one = Provider("p", ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.1, 0.0), regimes=regimes), loop)
        heard = []
        for weather in (RegimeState.BROWNOUT, RegimeState.OUTAGE, RegimeState.NORMAL, None):
            one.set_regime(weather)
            heard.append(await hear(one, chat(2)))
        assert one.regime_state is RegimeState.NORMAL
        return heard

    slow, down, well, _ = run(main)
    assert slow.took_s == pytest.approx(5.4)
    assert well.took_s == pytest.approx(1.1)
    assert down.head is not None
    assert down.head.status == 503
    assert b"server_is_overloaded" in down.body


def test_simulated_anthropic_overload_is_529() -> None:
    """The vendor and the dialect decide the status and the body."""
    async def main(loop: SimLoop) -> Heard:
        one = Provider("p", ProviderConfig("haiku-4.5-like", regimes=Regimes()), loop)
        one.set_regime(RegimeState.OUTAGE)
        return await hear(one, SimulatedRequest(Api.MESSAGES, "m", True))

    heard = run(main)
    assert heard.head is not None
    assert heard.head.status == 529
    assert b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_' in heard.body


@pytest.mark.parametrize(("vendor", "api", "expected"), [
    ("openai", Api.CHAT, {
        "x-ratelimit-limit-requests": "2", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "6000", "x-ratelimit-remaining-tokens": "5800", "x-ratelimit-reset-tokens": "2s",
        "retry-after": "30", "retry-after-ms": "30000"}),
    ("azure", Api.CHAT, {"x-ratelimit-reset-requests": "60", "x-ratelimit-reset-tokens": "2", "retry-after": "30"}),
    ("anthropic", Api.MESSAGES, {
        "anthropic-ratelimit-requests-limit": "2", "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2025-06-15T15:07:40Z", "anthropic-ratelimit-tokens-remaining": "5800",
        "anthropic-ratelimit-output-tokens-limit": "1000", "retry-after": "30"}),
    ("openrouter", Api.CHAT, {}),
])
def test_simulated_rate_limit_headers_are_the_vendors(vendor: Any, api: Api, expected: dict[str, str]) -> None:
    """The third request of a minute that allows two gets 429, its reason, and when to come again."""
    quota = VendorQuota(requests_per_min=2, tokens_per_min=6000, output_tokens_per_min=1000 if vendor == "anthropic"
                        else None)
    ask = SimulatedRequest(api, "m", True, n_prompt_tokens=90, max_output_tokens=10)

    async def main(loop: SimLoop) -> list[Heard]:
        one = Provider("p", ProviderConfig(vendor=vendor, quota=quota), loop)
        return [await hear(one, ask) for _ in range(3)]

    *admitted, refused = run(main)
    assert [heard.head.status for heard in admitted if heard.head is not None] == [200, 200]
    assert refused.head is not None
    assert refused.head.status == 429
    headers = dict(refused.head.headers)
    assert {name: headers.get(name) for name in expected} == expected
    if vendor == "openrouter":
        assert "retry-after" not in headers
        assert b'"X-RateLimit-Reset":"1750000030000"' in refused.body
    if vendor == "openai":
        assert b'"type":"requests","param":null,"code":"rate_limit_exceeded"' in refused.body
        assert b"Please try again in 30s." in refused.body


def test_simulated_quotas_refill_and_correct_estimates() -> None:
    """An answer that used less than it was charged for gives the rest back; more comes back with time."""
    async def main(loop: SimLoop) -> list[int]:
        one = Provider("p", ProviderConfig(quota=VendorQuota(tokens_per_min=600)), loop)
        statuses = []
        for n_most, wait_s in ((500, 0), (500, 0), (600, 0), (600, 2)):
            await asyncio.sleep(wait_s)
            heard = await hear(one, SimulatedRequest(Api.CHAT, "m", True, n_output=10, max_output_tokens=n_most))
            assert heard.head is not None
            statuses.append(heard.head.status)
        return statuses

    assert run(main) == [200, 200, 429, 200]


@pytest.mark.parametrize(("vendor", "api"), [("openai", Api.CHAT), ("anthropic", Api.MESSAGES)])
@pytest.mark.parametrize("burst_s", [6.0, 120.0])
def test_simulated_limit_headers_match_errors(vendor: Any, api: Api, burst_s: float) -> None:
    """The limit, what is left of it and when it is full belong to one bucket, whatever it holds."""
    n_good = int(burst_s)

    async def main(loop: SimLoop) -> list[Heard]:
        one = Provider("p", ProviderConfig(vendor=vendor, quota=VendorQuota(requests_per_min=60, burst_s=burst_s)), loop)
        return [await hear(one, SimulatedRequest(api, "m", n_output=1)) for _ in range(n_good + 1)]

    *admitted, refused = run(main)
    assert {heard.answering.outcome for heard in admitted} == {"completed"}
    assert refused.head is not None
    assert refused.head.status == 429
    headers = dict(refused.head.headers)
    if vendor == "openai":
        assert headers["x-ratelimit-limit-requests"] == str(n_good)
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert f"on requests per {burst_s:g}s: Limit {n_good}, Used {n_good}, Requested 1." in refused.body.decode()
    else:
        assert headers["anthropic-ratelimit-requests-limit"] == str(n_good)
        assert f"rate limit of {n_good} requests per {burst_s:g} seconds" in refused.body.decode()


def test_simulated_anthropic_sums_token_limits() -> None:
    """With limits on input and output, tokens have one too: their sum, full when both are."""
    async def main(loop: SimLoop) -> dict[str, str]:
        quota = VendorQuota(input_tokens_per_min=3000, output_tokens_per_min=600)
        one = Provider("p", ProviderConfig(vendor="anthropic", quota=quota), loop)
        answering = one.start_call(SimulatedRequest(Api.MESSAGES, "m", True, n_prompt_tokens=100, n_output=10,
                                             max_output_tokens=10))
        head = await answering.wait_head()
        answering.close()
        return dict(head.headers)

    headers = run(main)
    assert headers["anthropic-ratelimit-tokens-limit"] == "3600"
    assert headers["anthropic-ratelimit-tokens-remaining"] == "3490"
    assert headers["anthropic-ratelimit-tokens-reset"] == headers["anthropic-ratelimit-input-tokens-reset"]


def test_simulated_anthropic_errors_have_vendor_texts() -> None:
    """Its 429 names the limit as Anthropic does, not as OpenAI does."""
    async def main(loop: SimLoop) -> Heard:
        one = Provider("p", ProviderConfig(vendor="anthropic", quota=VendorQuota(input_tokens_per_min=30_000)), loop)
        return await hear(one, SimulatedRequest(Api.MESSAGES, "m", n_prompt_tokens=40_000))

    heard = run(main)
    assert b"would exceed your organization's rate limit of 30,000 input tokens per minute" in heard.body
    assert b"TPM" not in heard.body


def test_simulated_request_above_quota_is_refused_for_good() -> None:
    """A request above the limit itself is not told to come again."""
    async def main(loop: SimLoop) -> Heard:
        one = Provider("p", ProviderConfig(quota=VendorQuota(tokens_per_min=100)), loop)
        return await hear(one, SimulatedRequest(Api.CHAT, "m", True, n_prompt_tokens=1000))

    heard = run(main)
    assert heard.head is not None
    assert "retry-after" not in dict(heard.head.headers)
    assert b"Request too large for m" in heard.body


@pytest.mark.parametrize(("notices", "n_unread", "n_after"), [(True, 6, 0), (False, 100, 94)])
def test_simulated_cancelled_request_is_counted(notices: bool, n_unread: int, n_after: int) -> None:
    """Six chunks are out after 1.55 s; what comes after the hang-up is counted where it is not noticed."""
    config = ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.1, 0.0), cancels_on_disconnect=notices,
                            tariff=Tariff(5e5, 1e6))

    async def main(loop: SimLoop) -> Provider:
        one = Provider("p", config, loop)
        answering = await hear_for(1.55, one, chat(100, n_prompt_tokens=3))
        answering.close()
        assert one.counts.n_running == (0 if notices else 1)
        assert answering.outcome == ("cancelled" if notices else None)
        await hear(one, chat(1, n_prompt_tokens=3))
        await asyncio.sleep(10.9 - loop.now() - 0.001)
        assert one.counts.n_running == (0 if notices else 1)
        await asyncio.sleep(0.002)
        assert (answering.n_generated, answering.n_after_hangup, answering.outcome) == (n_unread, n_after, "cancelled")
        return one

    counts = run(main).counts
    assert counts.outcomes == {"cancelled": 1, "completed": 1}
    assert (counts.n_asked, counts.n_running, counts.n_running_peak) == (2, 0, 1 if notices else 2)
    assert (counts.n_tokens_prompted, counts.n_tokens_generated) == (6, n_unread + 1)
    assert (counts.n_tokens_unread, counts.n_tokens_after_hangup) == (n_unread, n_after)
    assert counts.cost_usd == pytest.approx(3 + n_unread + 1)
    assert counts.cost_unread_usd == pytest.approx(n_unread)
    assert counts.first_at == 0
    assert counts.last_at == pytest.approx(2.55 if notices else 10.9)


@pytest.mark.parametrize(("stream", "left_s", "ends_s"), [(True, 0.5, 2.9), (False, 0.5, 2.9), (False, 2.0, 2.9)])
def test_simulated_unnoticed_hangup_holds_quota(stream: bool, left_s: float, ends_s: float) -> None:
    """What an abandoned request was charged in advance comes back when it is over, not when it is left."""
    async def main(loop: SimLoop) -> Provider:
        quota = VendorQuota(tokens_per_min=1000, burst_s=60)
        one = Provider("p", ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.1, 0.0), quota=quota,
                                           cancels_on_disconnect=False),
                       loop)
        await hear_for(left_s, one, chat(20, stream=stream, max_output_tokens=900))
        for at, n_most in ((ends_s - 0.01, 150), (ends_s + 0.01, 980)):
            await asyncio.sleep(at - loop.now())
            assert one.list_limits()[0].remaining == pytest.approx(n_most, abs=50)
        return one

    assert run(main).counts.outcomes == {"cancelled": 1}


def test_simulated_cancelled_whole_answer_counts_generated_tokens() -> None:
    """Nobody saw it grow, but it had."""
    async def main(loop: SimLoop) -> int:
        return (await hear_for(6.0, Provider("p", SLOW, loop), chat(101, stream=False))).n_generated

    assert run(main) == pytest.approx(50, abs=1)


def test_simulated_counts_can_be_reset() -> None:
    """A reset forgets what was, and keeps count of what runs."""
    async def main(loop: SimLoop) -> Provider:
        one = Provider("p", SLOW, loop)
        await hear(one, chat(1))
        running = one.start_call(chat(1))
        one.reset_counts()
        running.close()
        return one

    counts = run(main).counts
    assert (counts.n_asked, counts.n_running, counts.outcomes) == (0, 0, {"cancelled": 1})


def test_simulated_close_before_start_and_after_end() -> None:
    """Closing twice, early or late counts once."""
    async def main(loop: SimLoop) -> Provider:
        one = Provider("p", SLOW, loop)
        early = one.start_call(chat(1))
        early.close()
        early.close()
        (await hear(one, chat(1))).answering.close()
        return one

    assert run(main).counts.outcomes == {"cancelled": 1, "completed": 1}


def test_simulated_cancel_at_first_token() -> None:
    """The timer that wakes an answer finds it cancelled, in the same turn of the loop, and that is no error."""
    async def main(loop: SimLoop) -> list[object]:
        said: list[object] = []
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        asking = loop.create_task(hear(Provider("p", ProviderConfig(ttft=Mixture(0.5)), loop), chat()))
        loop.call_at(0.5, asking.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(1)
        return said

    assert run(main) == []
