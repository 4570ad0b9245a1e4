"""The live times of one model."""

from random import Random

import pytest

from stayfast.policy.context.output_pace import MIN_ANSWERS, OutputPace


def steady_pace(n: int = 50, *, n_prompt: float = 100, ttft_s: float = 0.5, tpot_s: float = 0.02) -> OutputPace:
    pace = OutputPace()
    for number in range(n):
        pace.record_stream(n_prompt, ttft_s, tpot_s, number * 0.1)
    return pace


def test_estimate_with_few_answers_is_unknown() -> None:
    assert OutputPace().estimate(100, 0.9, 0.0) is None
    assert steady_pace(MIN_ANSWERS - 1).estimate(100, 0.9, 1.0) is None


def test_estimate_is_the_quantile_of_recent_answers() -> None:
    pace = OutputPace()
    for number in range(100):
        pace.record_stream(100, 0.1 * (1 + number % 10), 0.01 * (1 + number % 10), number * 0.05)
    found = pace.estimate(100, 0.9, 5.0)
    assert found is not None
    assert found.ttft_s == pytest.approx(0.9, rel=0.02)
    assert found.tpot_s == pytest.approx(0.09, rel=0.02)


def test_estimate_of_a_larger_prompt_scales_the_first_token() -> None:
    pace = steady_pace(n_prompt=100)  # 64 to 127 tokens
    found = pace.estimate(400, 0.9, 5.0)  # two powers of two more
    assert found is not None
    assert found.ttft_s == pytest.approx(2.0, rel=0.02)


def test_estimate_of_a_smaller_prompt_is_that_of_the_next_larger() -> None:
    found = steady_pace(n_prompt=4000, ttft_s=3.0).estimate(10, 0.9, 5.0)
    assert found is not None
    assert found.ttft_s == pytest.approx(3.0, rel=0.02)


def test_estimate_follows_running_answers_before_slow_ones_have_ended() -> None:
    pace = steady_pace()
    before = pace.estimate(100, 0.9, 5.0)
    pace.record_running([0.05, 0.05, 0.06], 5.5)
    after = pace.estimate(100, 0.9, 5.5)
    assert before is not None
    assert after is not None
    assert before.tpot_s == pytest.approx(0.02, rel=0.02)
    assert after.tpot_s == pytest.approx(0.05, rel=0.03)
    late = pace.estimate(100, 0.9, 11.0)  # what ran is old
    assert late is not None
    assert late.tpot_s == pytest.approx(0.02, rel=0.02)


def test_record_running_with_one_answer_changes_nothing() -> None:
    pace = steady_pace()
    pace.record_running([0.5], 5.0)
    found = pace.estimate(100, 0.9, 5.0)
    assert found is not None
    assert found.tpot_s == pytest.approx(0.02, rel=0.02)


def test_estimate_recovers_within_ten_seconds_of_many_answers() -> None:
    pace = steady_pace(100, tpot_s=0.05)
    for number in range(100):
        pace.record_stream(100, 0.5, 0.02, 30 + number * 0.1)
    found = pace.estimate(100, 0.9, 40.0)
    assert found is not None
    assert found.tpot_s == pytest.approx(0.02, rel=0.02)


def test_estimate_from_whole_answers_separates_the_first_token() -> None:
    rng, pace = Random(1), OutputPace()
    for number in range(64):
        n_tokens = rng.randint(50, 500)
        pace.record_whole(n_tokens, 0.5 + 0.02 * n_tokens, float(number))
    found = pace.estimate(100, 0.9, 64.0)
    assert found is not None
    assert found.ttft_s == pytest.approx(0.5, abs=0.01)
    assert found.tpot_s == pytest.approx(0.02, rel=0.01)


def test_estimate_from_whole_answers_of_one_length_is_unknown() -> None:
    pace = OutputPace()
    for number in range(64):
        pace.record_whole(100, 2.5, float(number))
    assert pace.estimate(100, 0.9, 64.0) is None


def test_record_length_gives_longest_and_reasoning() -> None:
    pace = steady_pace()
    for number in range(20):
        pace.record_length(500 + number, 100 + number)
    found = pace.estimate(100, 0.9, 5.0)
    assert found is not None
    assert (found.n_longest, found.n_reasoning) == (519, 117)


def test_estimate_forgets_after_ten_minutes() -> None:
    assert steady_pace().estimate(100, 0.9, 1300.0) is None
