"""How much of an answer fits: assumed at first, then learned from the slow ones of the last minutes."""

import pytest

from stayfast.turns.model_speed import ModelSpeed, choose_model


def test_model_speed_without_samples_uses_the_configured_values() -> None:
    pace = ModelSpeed("m", ttft_s=0.5, tokens_per_s=100)
    assert pace.max_tokens(2.5, 800, now=0) == 200
    assert pace.max_tokens(99, 800, now=0) == 800
    assert pace.max_tokens(0.1, 800, now=0) == 1
    assert pace.estimate_s(200, now=0) == pytest.approx(2.5)


def test_model_speed_follows_recent_answers() -> None:
    pace = ModelSpeed("m", ttft_s=0.5, tokens_per_s=100)
    for number in range(100):
        pace.record_answer(1.0, 1.0 + 99 * 0.05, 100, now=number)
    assert pace.max_tokens(6.0, 800, now=100) == pytest.approx(100, abs=3)
    pace.record_answer(1.0, 1.0, 1, now=100)  # one token says nothing about further ones
    for number in range(100):
        pace.record_answer(0.2, 0.2 + 99 * 0.005, 100, now=2000 + number)
    assert pace.max_tokens(0.7, 800, now=2100) == pytest.approx(100, abs=3)


def test_choose_model_takes_the_best_that_fits_else_the_fastest() -> None:
    large, small = ModelSpeed("large", ttft_s=0.5, tokens_per_s=50), ModelSpeed("small", ttft_s=0.2, tokens_per_s=200)
    assert choose_model([large, small], 100, seconds=3.0, now=0) is large
    assert choose_model([large, small], 100, seconds=1.0, now=0) is small
    assert choose_model([large, small], 100, seconds=0.1, now=0) is small
    with pytest.raises(ValueError, match="choose_model needs a model"):
        choose_model([], 100, seconds=1.0, now=0)
    with pytest.raises(ValueError, match="above 0"):
        ModelSpeed("m", tokens_per_s=0)
