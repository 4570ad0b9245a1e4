"""observe.waterfall: the figures and the explanation of one request."""

import msgspec
import pytest

from stayfast.core.events import RequestDone
from stayfast.core.types import Outcome
from stayfast.observe.waterfall import Waterfall, build_waterfall, format_spent, summarize_request, without_details
from stayfast.policy.histogram import LogHistogram
from tests.unit.observe.fact_rig import SLOW_RETRIED_REQUEST, STAGES, attempt, done


def of(fact: RequestDone, usual: LogHistogram | None = None) -> Waterfall:
    """As a client gets it."""
    return msgspec.json.decode(msgspec.json.encode(build_waterfall(fact, usual or LogHistogram())), type=Waterfall)


def test_times_are_milliseconds_from_accept() -> None:
    """Stages and attempts on one scale."""
    told = of(SLOW_RETRIED_REQUEST)
    assert [(one.stage, one.began_ms, one.spent_ms, one.allowance_ms, one.is_over) for one in told.stages][:2] == [
        ("admit", 0, 100, 3000, False), ("call", 100, 2500, 2000, True)]
    first, second = told.attempts
    assert (first.began_ms, first.ended_ms, first.first_token_ms, first.upstream_status) == (100, 900, None, 503)
    assert (second.began_ms, second.first_token_ms, second.stalls[0].at_ms, second.stalls[0].ms) == (1000, 2600, 2700, 300)
    assert (told.ms, told.ttft_ms, told.deadline_ms, told.cost_usd) == (3000, 2600, 3000, 0.25)


def test_explanation_names_stage_over_budget() -> None:
    """How it ended, what was over, what each attempt did, where the time went, whose it was."""
    assert of(SLOW_RETRIED_REQUEST).verdict == [
        "Answered in 3.00 s; first token after 2.60 s.",
        "Stage call broke its budget: 2.50 s of 2.00 s.",
        "Attempt 1 at u failed after 800 ms: status 503.",
        "v stalled once during its answer, for at most 300 ms.",
        "Longest stage: call, 2.50 s of 3.00 s.",
        "Gateway overhead before the first token: 200 ms.",
    ]


@pytest.mark.parametrize(("cache", "words"), [
    ("hit", "To delete this answer: stayfast cache purge --key "), ("semantic", "To delete this answer: "),
    ("stale", "To delete this answer: "), ("miss", "Its own answer, if stored: stayfast cache inspect ")])
def test_explanation_has_cache_key(cache: str, words: str) -> None:
    """Of one that was given it is the key of that; else the one of its own."""
    told = of(done(cache=cache, cache_key=b"k" * 32))
    assert told.cache_key == "6b" * 32
    (said,) = [sentence for sentence in told.verdict if "6b6b" in sentence]
    assert said.startswith(words)


@pytest.mark.parametrize(("changes", "words"), [
    ({"status": 499, "ttft_s": None}, "The client disconnected after 3.00 s, in stage relay; no token arrived."),
    ({"status": 504, "error": "total_s_exceeded"}, "Failed with 504 total_s_exceeded (its deadline passed) after 3.00 s,"),
    ({"status": 504, "error": "budget_s_exceeded"},
     "Failed with 504 budget_s_exceeded (a stage used up its part of the deadline) after 3.00 s, in stage relay; first"),
    ({"status": 504, "error": "idle_s_exceeded"}, "Failed with 504 idle_s_exceeded after 3.00 s, in stage relay; first"),
    ({"status": 404, "error": "model_not_found"}, "Refused with 404 model_not_found after 3.00 s."),
    ({"status": 503, "error": "overloaded", "shed": "queue_full"}, "Rejected with 503 overloaded (queue_full) after"),
    ({"degraded": "template"}, "Answered in degraded form (template) in 3.00 s"),
])
def test_explanation_begins_with_outcome(changes: dict[str, object], words: str) -> None:
    """The first sentence, in the list as well."""
    fact = done(ended_at=4.0, stages=STAGES, **changes)
    assert of(fact).verdict[0].startswith(words)
    assert summarize_request(fact).verdict.startswith(words)


def test_failed_connection_address_is_for_admins_only() -> None:
    """And the system's error; clients, who may look at their own requests, learn nothing of our network."""
    failed = attempt(outcome=Outcome.DROPPED, fault="connect", ttft_s=None, usage=None, detail="10.0.0.7:8000: ECONNREFUSED")
    fact = done(status=502, error="upstream_connect", ttft_s=None, attempts=(failed,))
    told = of(fact)
    assert "Attempt 1 at u failed after 400 ms: connect (10.0.0.7:8000: ECONNREFUSED)." in told.verdict
    assert told.attempts[0].detail == "10.0.0.7:8000: ECONNREFUSED"
    assert b"10.0.0.7" not in msgspec.json.encode(build_waterfall(without_details(fact), LogHistogram()))
    assert without_details(SLOW_RETRIED_REQUEST) is SLOW_RETRIED_REQUEST


@pytest.mark.parametrize(("cut_by", "words"), [
    ("client", "the client's"), ("deadline", "the tokens that fitted into the time left"),
    ("default", "the route's default")])
def test_explanation_names_the_limit_that_ended_the_answer(cut_by: str, words: str) -> None:
    assert of(done(cut_by=cut_by)).verdict[1] == f"The answer ended at its length limit: {words}."


def test_notes_are_not_capitalized() -> None:
    """Many begin with the name of an upstream, and names are not ours to change."""
    notes = ("dead stands behind: its breaker is open", "retried at v: 503 from dead, extra attempts 0.0 %, limit 10 %")
    assert of(done(notes=notes)).verdict[1:3] == [f"{note}." for note in notes]


@pytest.mark.parametrize(("spent_s", "allowance_s", "words"), [
    (0.99999, 0.9999, "1.00 s of 1.00 s"), (1.02, 0.98, "1.02 s of 0.98 s"), (2.0, 0.05, "2.00 s of 0.05 s"),
    (0.1, 3.0, "100 ms of 3.00 s"), (0.06, 0.05, "60 ms of 50 ms"), (0.999, 1.0, "999 ms of 1.00 s"),
    (0.000_31, 30.0, "0.31 ms of 30.00 s")])
def test_format_spent_over_allowance_has_one_unit(spent_s: float, allowance_s: float, words: str) -> None:
    """Else each in its own; 1000 ms is 1.00 s."""
    assert format_spent(spent_s, allowance_s) == words


def test_explanation_compares_with_baseline() -> None:
    """With enough requests in the last hour; not with fewer."""
    usual = LogHistogram()
    for _ in range(100):
        usual.add(0.65)
    told = of(SLOW_RETRIED_REQUEST, usual)
    assert told.normal is not None
    assert told.normal.p50_ms == pytest.approx(650, rel=0.011)
    assert told.verdict[-1].endswith("this request took 4.0 times the p50.")
    few = LogHistogram()
    few.add(1.0)
    assert of(SLOW_RETRIED_REQUEST, few).normal is None


def test_long_model_name_is_cut() -> None:
    """What a client sends as the model's name may be anything."""
    assert len(of(done(model="x" * 10_000)).model) == 128


def test_explanation_of_refused_request() -> None:
    """Refused before any stage ended."""
    fact = done(stages=(), attempts=(), ttft_s=None, usage=None, status=404, error="model_not_found", ended_at=1.0)
    assert of(fact).verdict == ["Refused with 404 model_not_found after 0.00 ms."]
