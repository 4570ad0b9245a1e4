"""policy.resilience.ttft: predictions of the time to first token."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.ttft import MAX_MODELS, N_WARM, TtftPredictor, TtftPredictors


def taught(n: int = 400, seed: int = 1, *, noise: float = 0.0) -> TtftPredictor:
    """An upstream that takes 100 ms, and 50 us for each token of the prompt and of those before it."""
    predictor, rng = TtftPredictor(), Random(seed)
    waiting = []
    for _ in range(n):
        guess = predictor.start_call(rng.choice([100, 400, 2000, 20_000]))
        waiting.append((guess, 0.1 + 5e-5 * predictor.ahead.n))
        if len(waiting) > rng.randrange(4):
            guess, ttft_s = waiting.pop(0)
            guess.record_first_token(ttft_s * rng.lognormvariate(0, noise), None)
    for guess, ttft_s in waiting:
        guess.record_first_token(ttft_s, None)
    return predictor


def test_predictor_before_10_samples_is_none() -> None:
    """Not a word until ten first tokens have come."""
    predictor = TtftPredictor()
    for _ in range(N_WARM):
        assert predictor.predict_s(100) is None
        predictor.start_call(100).record_first_token(0.2, None)
    assert predictor.predict_s(100) == pytest.approx(0.2, rel=0.1)


def test_predictor_learns_prompt_size_and_queue() -> None:
    """Within 5 % for a short prompt, a long one, and a short one behind a long one."""
    predictor = taught()
    assert predictor.predict_s(100) == pytest.approx(0.105, rel=0.05)
    assert predictor.predict_s(20_000) == pytest.approx(1.1, rel=0.05)
    predictor.start_call(20_000)
    assert predictor.predict_s(100) == pytest.approx(1.105, rel=0.05)


def test_predictor_error_ratio_measures_error() -> None:
    """Near nothing where waits are a line, about their own spread where they are not; None before a prediction was made."""
    assert TtftPredictor().error_ratio is None
    exact, vague = taught().error_ratio, taught(2000, noise=0.3).error_ratio
    assert exact is not None
    assert exact < 0.05
    assert vague is not None
    assert 0.15 < vague < 0.4


def test_predictor_heavy_tail_has_little_effect() -> None:
    """A wait a hundred times as long as predicted: by less than half of what is usual."""
    predictor = taught()
    before_s = predictor.predict_s(400) or 0.0
    predictor.start_call(400).record_first_token(100 * before_s, None)
    assert predictor.predict_s(400) == pytest.approx(before_s, rel=0.5)


def test_predictor_follows_changed_upstream() -> None:
    """Three times as slow: within 20 % after a few hundred answers."""
    predictor = taught()
    for _ in range(600):
        predictor.start_call(400).record_first_token(0.36, None)
    assert predictor.predict_s(400) == pytest.approx(0.36, rel=0.2)


def test_predictor_recovers_from_wrong_line() -> None:
    """Long prompts that were quick, then are not: no answer is taken for an outlier for ever."""
    predictor = TtftPredictor()
    for n in range(300):
        predictor.start_call(20_000 if n % 50 == 0 else 100).record_first_token(0.01, None)
    for n in range(4000):
        predictor.start_call(20_000 if n % 50 == 0 else 100).record_first_token(1.0 if n % 50 == 0 else 0.01, None)
    assert predictor.predict_s(20_000) == pytest.approx(1.0, rel=0.3)


def test_predictor_learns_cached_share() -> None:
    """Upstreams that count half of what was estimated, at the first token or at the end, halve what a prompt weighs."""
    for is_early in (True, False):
        predictor = TtftPredictor()
        for _ in range(200):
            guess = predictor.start_call(1000)
            guess.record_first_token(0.1, 500 if is_early else None)
            guess.end_wait(500)
        predictor.start_call(1000)
        assert predictor.ahead.n == pytest.approx(500, rel=0.02)


@given(st.lists(st.tuples(st.sampled_from(("begin", "first", "end")), st.integers(0, 5), st.integers(0, 100_000),
                          st.floats(0.0, 1e4)), max_size=60))
def test_predictor_n_ahead_returns_to_zero(events: list[tuple[str, int, int, float]]) -> None:
    """Whatever happens, in any order and twice: nothing is predicted below 0, and nothing is ahead when all is over."""
    predictor, guesses = TtftPredictor(), []
    for what, which, n_tokens, seconds in events:
        if what == "begin":
            guesses.append(predictor.start_call(n_tokens))
        elif guesses and what == "first":
            guesses[which % len(guesses)].record_first_token(seconds, n_tokens)
        elif guesses:
            guesses[which % len(guesses)].end_wait(None)
        assert predictor.ahead.n >= 0
        assert (predictor.predict_s(n_tokens) or 0.0) >= 0
    for guess in guesses:
        guess.end_wait(None)
    assert predictor.ahead.n == pytest.approx(0, abs=1e-3)


def test_predictor_repr_shows_line_and_error() -> None:
    """The line, and its error."""
    assert repr(TtftPredictor()) == "<TtftPredictor 0 ms + 0 own + 0 ahead of each 1,000 tokens; no error known>"
    assert "off by" in repr(taught())


def test_predictors_share_the_queue_and_keep_models_that_answer() -> None:
    """An engine reads the prompts of all its models in one queue. A client may name models that do not exist."""
    predictors = TtftPredictors()
    for _ in range(N_WARM):
        predictors.of("quick").start_call(100).record_first_token(0.2, None)
    waiting = predictors.of("other").start_call(500)
    assert predictors.of("quick").ahead.n == predictors.ahead.n == 500
    waiting.end_wait(None)
    for number in range(3 * MAX_MODELS):
        predictors.of(f"unknown-{number}")
    assert predictors.predict_s("quick", 100) == pytest.approx(0.2, rel=0.1)
    assert predictors.predict_s("unknown-1", 100) is None
