"""Predictions of one tier's speed."""


from stayfast.policy.tiers.speed import LEAST, MAX_AGE_S, TierSpeed


def test_prediction_of_streams_is_first_token_and_tokens() -> None:
    speed = TierSpeed()
    for first_s in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 5.0):
        speed.record_stream(1000, first_s, 0.01, 0.0)
        speed.record_length(200, 0.0)
    found = speed.predict(1000, None, 1.0, 0.9)
    assert found is not None
    assert (found.first_s, round(found.end_s, 6), found.n) == (0.9, 2.9, 10)
    capped = speed.predict(1000, 50, 1.0, 0.9)
    assert capped is not None
    assert round(capped.end_s, 6) == 1.4


def test_prediction_of_few_or_old_samples_is_none() -> None:
    speed = TierSpeed()
    for _ in range(LEAST - 1):
        speed.record_stream(1000, 0.1, None, 0.0)
    assert speed.predict(1000, None, 0.0, 0.9) is None
    speed.record_stream(1000, 0.1, None, 0.0)
    assert speed.predict(1000, None, 0.0, 0.9) is not None
    assert speed.predict(1000, None, MAX_AGE_S + 1, 0.9) is None


def test_prediction_prefers_prompts_of_the_same_length() -> None:
    speed = TierSpeed()
    for _ in range(20):
        speed.record_stream(1000, 0.1, None, 0.0)
        speed.record_stream(1_000_000, 9.0, None, 0.0)
    short, long = speed.predict(1000, None, 0.0, 0.9), speed.predict(1_000_000, None, 0.0, 0.9)
    assert short is not None
    assert long is not None
    assert (short.first_s, long.first_s) == (0.1, 9.0)


def test_attempt_given_up_counts_twice_its_wait() -> None:
    speed = TierSpeed()
    for _ in range(3):
        speed.record_given_up(1000, 1.5, 0.0, is_whole=True)
    found = speed.predict(1000, None, 0.0, 0.9)
    assert found is not None
    assert found.end_s == 3.0


def test_whole_answers_bound_the_sum_of_percentiles() -> None:
    speed = TierSpeed()
    for _ in range(5):
        speed.record_stream(1000, 1.0, 0.1, 0.0)
        speed.record_length(100, 0.0)
        speed.record_whole(1000, 4.0, 0.0)
    found = speed.predict(1000, None, 0.0, 0.9)
    assert found is not None
    assert (found.first_s, found.end_s) == (1.0, 4.0)
