"""policy.resilience.baselines: usual times, and the classification of calls."""

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.baselines import (
    ANSWERED,
    FAILED,
    JUDGED,
    LOST,
    MAX_CLASSES,
    N_WARM,
    NOTHING,
    REFUSED,
    WAITING,
    Baseline,
    CallRecord,
    CallVerdict,
    DueBuckets,
    LatencyBaselines,
    classify,
    count_slow,
    log_of,
)


def test_baselines_classes_do_not_mix() -> None:
    """A long prompt's ten seconds are as usual as a short one's tenth."""
    usual = LatencyBaselines()
    short, long = usual.baseline_for("m", 100, False), usual.baseline_for("m", 100_000, False)
    for _ in range(N_WARM):
        usual.learn(short, log_of(0.1))
        usual.learn(long, log_of(10.0))
    assert short.ratio(0.1) == pytest.approx(1.0)
    assert long.ratio(10.0) == pytest.approx(1.0)
    assert short.ratio(10.0) == pytest.approx(67.0)
    assert short.time_at_ratio_s(3.0) == pytest.approx(0.4)
    assert usual.all.baseline_s == pytest.approx(1.0)


def test_baseline_few_answers_give_none() -> None:
    """Before ten answers nothing is slow."""
    norm = LatencyBaselines().baseline_for("m", 1, False)
    for _ in range(N_WARM - 1):
        norm.learn(0.0)
    assert (norm.ratio(1e6), norm.time_at_ratio_s(3.0)) == (None, inf)


def test_baseline_fastest_of_a_burst_give_none() -> None:
    """Of a hundred simultaneous calls the first ten answers are too fast; those to three of four are representative."""
    norm = Baseline()
    norm.n_unknown = 100
    for number in range(75):
        assert norm.ratio(1.0) is None
        norm.n_unknown -= 1
        norm.learn(log_of(0.01 * (number + 1)))
    assert 0.2 < norm.baseline_s < 0.5


def test_baseline_batch_equals_single_samples() -> None:
    """A sum of logarithms and how many they are."""
    one, many = Baseline(), Baseline()
    for _ in range(40):
        for seconds in (0.1, 0.4):
            one.learn(log_of(seconds))
        many.learn(log_of(0.1) + log_of(0.4), 2)
    assert many.baseline_s == pytest.approx(one.baseline_s)
    many.learn(log_of(3.0) * 10_000, 10_000)
    assert many.baseline_s == pytest.approx(3.0)


def test_baseline_tail_has_little_effect() -> None:
    """One answer in twenty that takes forty times as long: a fifth more, not three times as much."""
    usual = LatencyBaselines()
    norm = usual.baseline_for("m", 1, False)
    for number in range(1000):
        usual.learn(norm, log_of(8.0 if number % 20 == 0 else 0.2))
    assert 0.2 < norm.baseline_s < 0.25


@given(names=st.lists(st.text(max_size=3), max_size=50))
def test_baselines_classes_are_bounded(names: list[str]) -> None:
    """Clients may choose the names of models."""
    usual = LatencyBaselines()
    for number in range(MAX_CLASSES):
        usual.baseline_for(f"{number}", 1, False)
    for name in names:
        usual.baseline_for(name, 1, False)
    assert repr(usual).endswith(f" {MAX_CLASSES} classes>")


MARK = 7


def call(norm: Baseline, became: CallVerdict, took_s: float | None = None, slow_s: float = 3.0, *, mark: int = MARK,
         n_concurrent: int = 1, real: Baseline | None = None) -> CallRecord:
    """One that began at 100."""
    made = CallRecord()
    made.baseline, made.mark, made.n_concurrent = norm, mark, n_concurrent
    made.began_at, made.slow_at = 100.0, 100.0 + slow_s
    made.verdict, made.took_s, made.actual_baseline, made.is_queued = became, took_s, real, False
    made.is_slow = became is LOST or took_s is None or took_s >= slow_s
    return made


def warm(usual: LatencyBaselines, n_tokens: int = 1, seconds: float = 1.0) -> Baseline:
    """A class of which it is known that this is usual."""
    norm = usual.baseline_for("m", n_tokens, False)
    usual.learn(norm, N_WARM * log(seconds), N_WARM)
    return norm


@given(st.lists(st.tuples(st.sampled_from(CallVerdict), st.sampled_from([None, 0.5, 3.5]), st.sampled_from([MARK, MARK - 1]),
                          st.sampled_from([3.0, inf]))))
def test_classify_by_model_equals_whole(drawn: list[tuple[CallVerdict, float | None, int, float]]) -> None:
    """The preview of the calls with a mark equals the result of their classification."""
    norm = warm(LatencyBaselines())
    calls = [call(norm, became, took_s, slow_s, mark=mark) for became, took_s, mark, slow_s in drawn if became is not JUDGED]
    before = count_slow(calls, MARK)
    found = classify(calls, None, MARK)
    assert before == (found.n_slow, found.n_quick)


def test_classify_counts_calls_by_verdict() -> None:
    """Answered in time, late, not at all; lost; failed, refused; and what says nothing."""
    usual = LatencyBaselines()
    norm = warm(usual)
    calls = [call(norm, ANSWERED, 0.5), call(norm, ANSWERED, 3.5), call(norm, WAITING, n_concurrent=9),
             call(norm, LOST, 1.8),
             call(norm, FAILED), call(norm, REFUSED), call(norm, NOTHING)]
    found = classify(calls, usual, MARK)
    assert (found.n, found.n_dropped, found.n_peak, found.n_slow, found.n_quick) == (6, 2, 9, 3, 1)
    assert found.samples == [(pytest.approx(0.55 / 1.05), 1), (pytest.approx(3.55 / 1.05), 1), (inf, 9),
                             (pytest.approx(1.85 / 1.05), 1)]
    assert {each.verdict for each in calls} == {JUDGED}


def test_classify_counts_slow_calls_of_the_mark_only() -> None:
    """Calls that began before its last change are limits' and norms' alone."""
    norm = warm(LatencyBaselines())
    found = classify([call(norm, WAITING, mark=MARK - 1), call(norm, ANSWERED, 1.0, mark=MARK - 1)], None, MARK)
    assert (found.n_slow, found.n_quick, len(found.samples)) == (0, 0, 2)


def test_classify_without_baseline_counts_refusals_only() -> None:
    """They count as calls and say no more; in seconds, what there is."""
    norm = Baseline()
    calls = [call(norm, ANSWERED, 2.0, inf), call(norm, WAITING, None, inf), call(norm, REFUSED, None, inf)]
    assert classify(calls, None, MARK) == (3, 1, 1, [], 0, 0)
    calls = [call(norm, ANSWERED, 2.0, inf), call(norm, WAITING, None, inf)]
    assert classify(calls, None, MARK, wants_seconds=True).samples == [(2.0, 1), (inf, 1)]


def test_classify_learns_at_most_slow_times() -> None:
    """An answer after a minute, and one that never came, are as long as a slow one."""
    usual = LatencyBaselines()
    norm, real = warm(usual), warm(usual, 1000, 2.0)
    calls = [call(norm, ANSWERED, 0.5, real=real), call(norm, ANSWERED, 60.0), call(norm, WAITING)]
    assert classify(calls, usual, MARK).samples[0][0] == pytest.approx(0.55 / 2.05)
    assert norm.baseline_s == pytest.approx((0.5 * 3 * 3) ** (1 / 13))
    assert real.baseline_s == pytest.approx((2.0**10 * 0.5) ** (1 / 11))


@given(steps=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 30)), max_size=100))
def test_due_buckets_return_each_item_once_in_order(steps: list[tuple[float, float]]) -> None:
    """At most an eighth of a second late; `next_at` is the next instant to check."""
    wheel: DueBuckets[tuple[int, float]] = DueBuckets()
    now, seen = 0.0, []
    for number, (gap_s, wait_s) in enumerate(steps):
        now += gap_s
        wheel.add((number, now + wait_s), now + wait_s)
        is_due = now >= wheel.next_at
        found = wheel.pop_due(now)
        assert bool(found) == is_due
        for at, items in found:
            assert all(due_at <= at <= now and at - due_at <= 0.125 for _, due_at in items)
            seen += items
        assert [at for at, _ in found] == sorted(at for at, _ in found)
    seen += [item for _, items in wheel.pop_due(inf if not steps else now + 100) for item in items] if steps else []
    assert sorted(number for number, _ in seen) == list(range(len(steps)))
    assert wheel.next_at == inf
