"""lab.simulated: sampled latencies match the closed forms."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.lab.simulated import (
    PRESETS,
    GapConfig,
    Mixture,
    ProviderConfig,
    Regime,
    Regimes,
    RegimeState,
    SimulatedRequest,
    SlowdownConfig,
    StallConfig,
)
from stayfast.lab.simulated.faults import CALM, RegimeTimeline
from stayfast.lab.simulated.timing_plan import Dice, draw_chunks_until, draw_timing, rest_s

# What reference percentiles the fits were made to, in milliseconds: p50, p95, p99.
PUBLISHED = {
    "gpt-4o-like": (639, 1144, 4517), "gpt-4o-mini-like": (536, 844, 4461), "gpt-4.1-like": (726, 1220, 1946),
    "gpt-4.1-mini-like": (661, 1087, 2169), "haiku-4.5-like": (541, 1591, 4117), "sonnet-4.6-like": (941, 2939, 4787),
    "opus-4.6-like": (1626, 2420, 3797), "gemini-flash-like": (477, 776, 1309), "gemini-flash-lite-like": (311, 1142, 3080),
    "deepseek-v3-like": (1479, 1926, 2492),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_latency_presets_have_published_percentiles(preset: str) -> None:
    """The closed form of each preset meets the figures it was fitted to within 1 %."""
    ttft = PRESETS[preset].ttft
    for p, published_ms in zip((0.5, 0.95, 0.99), PUBLISHED[preset], strict=True):
        assert ttft.quantile(p) * 1000 == pytest.approx(published_ms, rel=0.01)


@pytest.mark.parametrize("preset", ["gpt-4o-like", "sonnet-4.6-like"])
def test_latency_draws_match_closed_form_percentiles(preset: str) -> None:
    """200,000 draws: p50 and p95 within 1 %, p99 within 3 %, the mean within 1 %."""
    ttft, rng = PRESETS[preset].ttft, Random(5)
    drawn = sorted(ttft.draw(rng, rng.random()) for _ in range(200_000))
    for p, within in ((0.5, 0.01), (0.95, 0.01), (0.99, 0.03)):
        assert drawn[int(p * len(drawn))] == pytest.approx(ttft.quantile(p), rel=within)
    assert sum(drawn) / len(drawn) == pytest.approx(ttft.mean_s, rel=0.01)


@given(st.floats(0.001, 10), st.floats(0, 1.5), st.floats(0, 1), st.floats(0.001, 10), st.floats(0.001, 0.999))
def test_latency_quantile_inverts_cdf(median_s: float, sigma: float, share: float, tail_s: float, p: float) -> None:
    """cdf reaches p at its quantile and not before."""
    mixture = Mixture(median_s, sigma, share, tail_s)
    at = mixture.quantile(p)
    assert mixture.cdf(at) >= p - 1e-9
    assert mixture.cdf(at * (1 - 1e-6)) <= p + 1e-4


def test_latency_constant_mixture() -> None:
    """Without spread every quantile is the median, and `instant` is 0."""
    assert Mixture(0.2).quantile(0.01) == pytest.approx(0.2)
    assert Mixture(0.2).quantile(0.99) == pytest.approx(0.2)
    assert PRESETS["instant"].ttft.draw(Random(1), 0.5) == 0
    assert PRESETS["instant"].ttft.quantile(0.5) == pytest.approx(0, abs=1e-9)


def test_latency_grows_with_prompt() -> None:
    """With 0.0001 a token, 10,000 tokens double it, drawn and in closed form."""
    config = ProviderConfig(ttft=Mixture(0.5), prefill_per_token=0.0001)
    ask = SimulatedRequest(Api.CHAT, "m", n_prompt_tokens=10_000, n_output=1)
    assert draw_timing(config, config.numbers, ask, Random(1), luck=None, regime=CALM).ttft_s == pytest.approx(1.0)
    assert config.ttft_for(10_000).quantile(0.5) == pytest.approx(1.0)


def test_latency_bundle_gaps_match_closed_form() -> None:
    """A chunk of four tokens takes four gaps, and its median is that of the closed form."""
    gaps, rng = GapConfig(0.01, 0.3, 4), Random(3)
    drawn = sorted(gaps.draw(rng, 4) for _ in range(50_000))
    of = gaps.chunk_gaps(4)
    for p in (0.5, 0.99):
        assert drawn[int(p * len(drawn))] == pytest.approx(of.quantile(p), rel=0.02)
    assert of.quantile(0.5) == pytest.approx(0.04)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_latency_stalls_hit_their_share_of_chunks(share: float) -> None:
    """Skipping to the next stall gives the share asked for."""
    rng, n_chunks, n_struck, at = Random(1), 100_000, 0, -1
    while (at := at + 1 + draw_chunks_until(share, rng)) < n_chunks:
        n_struck += 1
    assert n_struck / n_chunks == pytest.approx(share, rel=0.05)
    assert draw_chunks_until(1.0, rng) == 0
    assert draw_chunks_until(0.0, rng) > 1e9


def test_latency_whole_answer_takes_as_long_as_stream() -> None:
    """Gaps, stalls and sag of an answer that nobody sees growing add up to their means."""
    config = ProviderConfig(gaps=GapConfig(0.01, 0.0), stalls=StallConfig(0.1, Mixture(0.5)), slowdown=SlowdownConfig(1.0,
                                                                                                                      0.25))
    ask = SimulatedRequest(Api.CHAT, "m", n_output=101)
    total_s = 0.0
    for number in range(2000):
        rng = Random(number)
        pace = draw_timing(config, config.numbers, ask, rng, luck=None, regime=CALM)
        total_s += rest_s(config, pace, rng)
    # 100 gaps; from a uniform point on four times as long; 100 chances of a stall of half a second
    assert total_s / 2000 == pytest.approx(1.0 * (1 + 3 / 2) + 100 * 0.1 * 0.5, rel=0.02)


def test_latency_answer_lengths_match_azure_trace() -> None:
    """Median 151 tokens; a limit cuts them and says so; a wanted length is kept."""
    config = ProviderConfig()
    drawn = []
    for number in range(20_000):
        pace = draw_timing(config, config.numbers, SimulatedRequest(Api.CHAT, "m"), Random(number), luck=None, regime=CALM)
        drawn.append(pace.n_output)
    assert sorted(drawn)[10_000] == pytest.approx(151, rel=0.03)
    cut = draw_timing(config, config.numbers, SimulatedRequest(Api.CHAT, "m", max_output_tokens=2), Random(1), luck=None,
               regime=CALM)
    assert (cut.n_output, cut.reason) == (2, "length")
    request = SimulatedRequest(Api.CHAT, "m", n_output=77)
    wanted = draw_timing(config, config.numbers, request, Random(1), luck=None, regime=CALM)
    assert (wanted.n_output, wanted.reason) == (77, "stop")


def test_latency_draws_repeat_by_seed() -> None:
    """The same seed, name and number throw the same; another of any of them does not."""
    thrown = [Dice(seed, name).for_request(number).random()
              for seed, name, number in ((1, "a", 1), (1, "a", 1), (2, "a", 1), (1, "b", 1), (1, "a", 2))]
    assert thrown[0] == thrown[1]
    assert len(set(thrown)) == 4
    assert Dice(1, "a").for_faults(1).random() != thrown[0]


def test_latency_regime_changes_are_independent_of_requests() -> None:
    """It repeats by seed, does not depend on who looks when, and spends its time as the mean stays say."""
    regimes = Regimes(Regime(60), Regime(20), Regime(10), Regime(5))
    one, other = RegimeTimeline(regimes, Random(1)), RegimeTimeline(regimes, Random(1))
    ages = [number * 0.5 for number in range(40_000)]
    seen = [one.state_at(age) for age in ages]
    assert [other.state_at(age) for age in reversed(ages)] == seen[::-1]
    assert seen[0] is RegimeState.NORMAL
    assert set(seen) == set(RegimeState)
    # visits a visit to normal: 0.98 degraded, 0.45 brownout, 0.12 outage; times the mean stays
    assert seen.count(RegimeState.NORMAL) / len(seen) == pytest.approx(60 / (60 + 19.5 + 4.5 + 0.6), abs=0.05)
    assert [RegimeTimeline(regimes, Random(2)).state_at(age) for age in ages[:2000]] != seen[:2000]


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Mixture(-1), "median_s"), (lambda: Mixture(1, 4), "sigma"), (lambda: Mixture(1, tail_share=2), "tail_share"),
    (lambda: GapConfig(tokens_per_chunk=0), "tokens_per_chunk"), (lambda: Mixture(1).quantile(1), "between 0 and 1"),
    (lambda: ProviderConfig("gpt-9"), "preset must be one of gpt-4o"),
    (lambda: ProviderConfig(tail_correlation=1.5), "tail_correlation"),
])
def test_latency_invalid_settings_are_rejected(make: object, words: str) -> None:
    """The message names the knob."""
    assert callable(make)
    with pytest.raises(ValueError, match=words):
        make()
