"""What a run means, in sentences."""

from random import Random

from stayfast.lab.load.result import ClientHealth
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.html.page import render_page
from stayfast.lab.report.meaning import explain_run, hedged_p99_s
from stayfast.lab.report.table import TerminalStyle, format_report
from tests.bench.synthetic import Scenario, result

TAIL = Scenario(tail_share=0.06, error_share=0.0, bad_factor=1.0)


def sentences(scenario: Scenario, *, n_attempts: int = 1, health: ClientHealth | None = None) -> str:
    run = result(scenario, health=health)
    column = run.samples.ints["n_upstream_attempts"]
    for row in range(len(column)):
        column[row] = n_attempts
    return " ".join(explain_run(MeasuredRun(run)))


def test_explain_run_long_tail_names_the_wait_and_what_a_second_attempt_brings() -> None:
    text = sentences(TAIL)
    assert "times p50" in text
    assert "one in fifty waits over" in text
    assert "would cut p99 to about" in text


def test_explain_run_of_a_target_with_second_attempts_recommends_none() -> None:
    assert sentences(TAIL, n_attempts=2).endswith("The target already sends second attempts.")


def test_explain_run_steady_target_is_called_steady() -> None:
    assert "steady" in sentences(Scenario(tail_share=0.0, error_share=0.0, bad_factor=1.0))


def test_explain_run_many_failures_come_before_latency() -> None:
    assert sentences(Scenario(error_share=0.2)).endswith("requests failed: mend that before the latency.")


def test_explain_run_few_answers_are_too_few_for_a_p99() -> None:
    assert sentences(Scenario(n=100, error_share=0.0)).startswith("100 answers are too few for a p99")


def test_explain_run_invalid_run_has_no_meaning() -> None:
    assert sentences(TAIL, health=ClientHealth(verdict=("late",))) == ""


def test_hedged_p99_agrees_with_drawn_pairs() -> None:
    """The formula against the minimum of two draws, for a tail by chance."""
    rng = Random(3)
    def draw() -> float:
        return rng.lognormvariate(0, 0.3) * (6.0 if rng.random() < 0.05 else 0.5)
    waits_s = sorted(draw() for _ in range(20_000))
    after_s = waits_s[int(0.95 * len(waits_s))]
    pairs_s = sorted(min(first_s, after_s + draw()) for first_s in waits_s)
    measured_s = pairs_s[int(0.99 * len(pairs_s))]
    assert abs(hedged_p99_s(waits_s, after_s) - measured_s) < 0.05 * measured_s


def test_meaning_stands_in_both_reports() -> None:
    run = MeasuredRun(result(TAIL))
    first = next(iter(explain_run(run)))
    assert first in render_page([run])
    assert first.split(":")[0] in format_report([run], TerminalStyle(is_on=False, width=80))
