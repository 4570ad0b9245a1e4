"""policy/resilience/prefill_rate: learned from prompts that waited for no other; bounded where it is uncertain."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.prefill_rate import LEAST, MOST, PRIOR, PrefillRate, bound_rates


def learned(rate: float, n: int = 64, *, outliers: float = 0.0, base_s: float = 0.3, spread: int = 8000) -> PrefillRate:
    """First tokens of random prompts at this rate, some of them 5 s late."""
    found, rng = PrefillRate(), Random(1)
    for _ in range(n):
        n_tokens = rng.randrange(100, 100 + spread)
        late_s = 5.0 if rng.random() < outliers else rng.uniform(0, 0.02)
        found.learn(n_tokens, 0.0, base_s + n_tokens / rate + late_s)
    return found


@pytest.mark.parametrize("rate", [2_696.0, 15_928.0])
def test_rate_is_learned_without_the_constant_part(rate: float) -> None:
    assert learned(rate).tokens_per_s == pytest.approx(rate, rel=0.1)


def test_rate_outliers_hardly_move_it() -> None:
    assert learned(10_000.0, 400, outliers=0.1).tokens_per_s == pytest.approx(10_000.0, rel=0.25)


def test_rate_of_few_or_similar_prompts_is_unknown() -> None:
    assert learned(10_000.0, 15).tokens_per_s is None
    assert learned(10_000.0, 200, spread=100).tokens_per_s is None


def test_rate_of_queued_prompts_is_not_learned() -> None:
    """Each waited for as many tokens again."""
    found = PrefillRate()
    for n in range(200):
        found.learn(500.0 + 40 * n, 500.0 + 40 * n, 1.0)
    assert found.tokens_per_s is None


def test_rate_of_pure_noise_is_unknown_or_moves_slowly() -> None:
    """Times that do not depend on the prompt give no rate, or none that jumps."""
    found, rng, before = PrefillRate(), Random(3), None
    for _ in range(400):
        found.learn(rng.randrange(100, 8000), 0.0, rng.uniform(0.1, 2.0))
        now = found.tokens_per_s
        if before is not None and now is not None:
            assert before / 2 <= now <= before * 2
        before = now


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4)), max_size=120))
def test_rate_any_samples_stay_in_bounds(samples: list[tuple[float, float, float]]) -> None:
    found = PrefillRate()
    for sample in samples:
        found.learn(*sample)
        assert found.tokens_per_s is None or LEAST <= found.tokens_per_s <= MOST


def test_bound_rates_unknown_gets_median_and_prior() -> None:
    assert bound_rates([None, None]) == [PRIOR, PRIOR]
    assert bound_rates([None, 9000.0, 9000.0]) == [9000.0, 9000.0, 9000.0]


@given(st.lists(st.none() | st.floats(LEAST, MOST), min_size=1, max_size=6))
def test_bound_rates_stay_within_factor_of_each_other(rates: list[float | None]) -> None:
    bounded = bound_rates(rates)
    assert max(bounded) <= 16.001 * min(bounded)
    order = sorted((rate, one) for rate, one in zip(rates, bounded, strict=True) if rate is not None)
    assert [one for _, one in order] == sorted(one for _, one in order)
