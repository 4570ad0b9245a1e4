"""Goodput and assertions."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.load.result import BOUNDED, ClientHealth, Error, LoadSlo, evaluate_goodput, parse_slo
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.assertions import KNOWN, check_assertions, parse_assertion
from tests.bench.synthetic import Scenario, result

WHOLE = Error.NONE


def test_goodput_needs_completeness_and_every_slo() -> None:
    """Each cause is counted; a request over two bounds counts under both and once in the share."""
    errors = [WHOLE, WHOLE, WHOLE, Error.RATE_LIMITED, Error.TRUNCATED]
    judged = evaluate_goodput({"ttft": [0.1, 0.9, 0.9, 0.1, 0.1], "e2e": [1.0, 1.0, 9.0, 1.0, 1.0]}, errors,
                   LoadSlo(ttft_s=0.5, e2e_s=2.0))
    assert (judged.n_good, judged.share) == (1, 0.2)
    assert judged.misses == {"rate_limited": 1, "truncated": 1, "ttft": 2, "e2e": 1}
    assert list(judged.is_good) == [1, 0, 0, 0, 0]


def test_goodput_value_equal_to_its_bound_is_good() -> None:
    """A value equal to the bound is within it."""
    assert evaluate_goodput({"ttft": [0.5]}, [WHOLE], LoadSlo(ttft_s=0.5)).n_good == 1


def test_goodput_missing_value_fails_its_slo() -> None:
    """A one-token answer has no tpot."""
    assert evaluate_goodput({"tpot": [nan]}, [WHOLE], LoadSlo(tpot_s=0.1)).misses == {"tpot (null)": 1}


def test_parse_slo_reads_units() -> None:
    """Milliseconds and seconds, by space or comma."""
    assert parse_slo("ttft:500ms, e2e:5s") == LoadSlo(ttft_s=0.5, e2e_s=5.0)
    assert parse_slo("") == LoadSlo()


@pytest.mark.parametrize(("text", "expected"), [
    ("ttft:500", "add the unit, 500ms or 500s"), ("tfft:1s", "no metric 'tfft'; known: ttft"), ("ttft", "expected METRIC"),
    ("ttft:1s ttft:2s", "bounded twice"), ("ttft:0s", "above 0"), ("ttft:1.2.3s", "not a number")])
def test_parse_slo_refuses_wrong_texts(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_slo(text)


@given(st.text(max_size=30))
def test_parse_slo_any_text_is_read_or_refused(text: str) -> None:
    try:
        slo = parse_slo(text)
    except ValueError:
        return
    assert set(slo.bounds()) <= set(BOUNDED)


@pytest.mark.parametrize(("text", "bound"), [
    ("ttft.p99<0.5", 0.5), ("ttft.p99 <= 500ms", 0.5), ("goodput>0.99", 0.99), ("goodput >= 99%", 0.99),
    ("errors<0.01", 0.01), ("gap.p99.9<2s", 2.0), ("tpot.mean<30ms", 0.03), ("rps>120", 120.0)])
def test_parse_assertion_reads_metric_and_bound(text: str, bound: float) -> None:
    """Seconds by default."""
    assert parse_assertion(text).bound == pytest.approx(bound)


@pytest.mark.parametrize(("text", "read_as", "is_doubtful"), [
    ("ttft.p50<800", "ttft.p50<800 s", True), ("ttft.p99<0.5", "ttft.p99<0.5 s", False),
    ("ttft.p50<800ms", "ttft.p50<800ms", False), ("e2e.p50<90s", "e2e.p50<90s", False), ("rps>120", "rps>120", False)])
def test_assertion_without_a_unit_is_shown_in_seconds(text: str, read_as: str, is_doubtful: bool) -> None:
    assertion = parse_assertion(text)
    assert (assertion.read_as, assertion.is_doubtful) == (read_as, is_doubtful)


@pytest.mark.parametrize(("text", "expected"), [
    ("ttft<1", r"column 5: expected \.STATISTIC after ttft: one of p50"), ("tft.p99<1", "column 1: expected a metric"),
    ("ttft.p99=1", "column 9: expected an operator"), ("ttft.p99<", "column 10: expected a number"),
    ("goodput>1ms", "column 10: expected a unit of goodput: %"), ("ttft.p100<1", "column 5"), ("", "column 1"),
    ("goodput.p99>1", r"column 8: expected an operator: goodput is one figure and has no \.p99"), ("errors<.", "column 8")])
def test_parse_assertion_error_names_the_column(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_assertion(text)


def test_parse_assertion_unknown_metric_lists_known_ones() -> None:
    with pytest.raises(ValueError, match="is none of") as why:
        parse_assertion("latency<1")
    assert all(name in str(why.value) for name in KNOWN)


@given(st.text(max_size=24))
def test_parse_assertion_any_text_is_read_or_refused(text: str) -> None:
    try:
        assertion = parse_assertion(text)
    except ValueError:
        return
    assert assertion.bound >= 0


def test_assertion_holds_or_fails_by_its_figure() -> None:
    run = MeasuredRun(result(Scenario(error_share=0.0)))
    texts = ("ttft.p50<0.1", "ttft.p50<2", "errors<=0", "goodput<0.5", "tpot.min>1us")
    checks = check_assertions([parse_assertion(text) for text in texts], run)
    assert [found.holds for found in checks] == [False, True, True, False, True]
    assert checks[0].actual == run.distributions["ttft"].quantile(0.5)


def test_assertion_counts_failures_as_slow() -> None:
    """With 3 % failed, p99 is infinite; p50 is not."""
    run = MeasuredRun(result(Scenario(error_share=0.03)))
    hard, easy = check_assertions([parse_assertion("ttft.p99<1000"), parse_assertion("ttft.p50<1000")], run)
    assert (hard.holds, hard.actual, easy.holds) == (False, inf, True)
    assert "of the offered requests failed" in hard.why


def test_assertion_fails_in_an_invalid_run() -> None:
    run = MeasuredRun(result(health=ClientHealth(verdict=("late",))))
    assert check_assertions([parse_assertion("errors<=1")], run)[0].why == "the run is invalid"
    assert not check_assertions([parse_assertion("errors<=1")], run)[0].holds


def test_assertion_fails_without_requests() -> None:
    run = MeasuredRun(result(Scenario(n=0)))
    checks = check_assertions([parse_assertion("ttft.p99<1"), parse_assertion("errors<1")], run)
    assert [found.holds for found in checks] == [False, False]


def test_assertion_quantile_of_too_few_values_fails() -> None:
    """The p99 of 50 answers is the slowest one."""
    few, enough = (MeasuredRun(result(Scenario(n=n, error_share=0.0))) for n in (50, 100))
    texts = [parse_assertion("ttft.p99<1000"), parse_assertion("ttft.p90<1000"), parse_assertion("ttft.max<1000")]
    assert [found.holds for found in check_assertions(texts, few)] == [False, True, True]
    assert check_assertions(texts, few)[0].why == "p99 needs 100 values, not 50"
    assert all(found.holds for found in check_assertions(texts, enough))


def test_assertion_spike_without_a_p99_fails() -> None:
    """With 3 % failed there is no p99."""
    run = MeasuredRun(result(Scenario(error_share=0.03)))
    assert run.spike_factor() == inf
    assert not check_assertions([parse_assertion("spike<1000")], run)[0].holds
