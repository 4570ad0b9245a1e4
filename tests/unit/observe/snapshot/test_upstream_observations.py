"""What is seen of upstreams: connections, quotas, clumped streams, speed, batching, breakers."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import AttemptDone, BreakerChanged, ConnectionOpened, ConnectionReused
from stayfast.core.samples import QuotaReported
from stayfast.core.snapshot import UpstreamRow
from stayfast.core.types import Outcome, Usage
from stayfast.observe.snapshot.upstream_observations import ObservedUpstreams, UpstreamObservations, complete_upstreams


def stream(began_at: float, ttft_s: float = 0.5, spent_s: float = 2.0, n: int = 100, **fields: Any) -> AttemptDone:
    ended_at = began_at + ttft_s + spent_s
    return AttemptDone(**{"route": "chat", "upstream": "up", "began_at": began_at, "ended_at": ended_at,
                          "outcome": Outcome.SUCCESS, "ttft_s": ttft_s, "usage": Usage(10, n), "n_content": n,
                          "last_s": ttft_s + spent_s, **fields})


def row_of(*parts: ObservedUpstreams) -> UpstreamRow:
    (row,) = complete_upstreams([UpstreamRow("up", kind="openai")], parts)
    return row


def seen(*attempts: AttemptDone) -> ObservedUpstreams:
    observed = UpstreamObservations()
    observed.note_attempts(attempts)
    return observed.collect(max(fact.ended_at for fact in attempts))


def test_upstream_row_connections_are_counted_with_their_times() -> None:
    observed = UpstreamObservations()
    observed.note_opened(ConnectionOpened("up", 0.12, "1.1", tls=True, tls_resumed=True, connect_s=0.04), 100.0)
    observed.note_opened(ConnectionOpened("up", 0.20, "1.1", tls=True), 100.0)
    observed.note_reused([ConnectionReused("up")] * 7, 101.0)
    row = row_of(observed.collect(102.0))
    assert (row.n_opened, row.n_tls_resumed, row.n_reused) == (2, 1, 7)
    assert row.connect_s.n == 1
    assert row.connect_s.p50 == pytest.approx(0.04, rel=0.012)
    assert row.handshake_s.most == pytest.approx(0.2, rel=0.012)
    assert row_of(observed.collect(500.0)).n_reused == 0


def test_upstream_row_speed_is_that_of_single_answers() -> None:
    row = row_of(seen(*[stream(float(n)) for n in range(20)]))
    assert row.tokens_per_s.p50 == pytest.approx(99 / 2, rel=0.012)
    assert row.clumped_ratio == 0.0
    assert row.kind == "openai"


@pytest.mark.parametrize(("fields", "ratio"), [
    ({"spent_s": 0.0}, 1.0), ({"spent_s": 0.004}, 1.0),
    ({"spent_s": 0.004, "n": 5}, None),  # too few parts to tell
    ({"spent_s": 0.04, "ttft_s": 0.02}, 0.0),  # a fast engine: 2500 tokens a second
    ({"spent_s": 0.3, "ttft_s": 30.0}, 0.0),  # a slow first token, and a usual pace
])
def test_upstream_row_streams_that_come_at_once_are_clumped(fields: dict[str, Any], ratio: float | None) -> None:
    assert row_of(seen(*[stream(float(n), **fields) for n in range(10)])).clumped_ratio == ratio


def test_upstream_row_whole_and_failed_answers_show_nothing() -> None:
    row = row_of(seen(stream(1.0, is_stream=False, spent_s=0.0), stream(2.0, outcome=Outcome.DROPPED, spent_s=0.0),
                      stream(3.0)))
    assert (row.tokens_per_s.n, row.clumped_ratio) == (1, 0.0)


def test_upstream_row_attempts_are_evaluated_once() -> None:
    observed = UpstreamObservations()
    observed.note_attempts([stream(1.0), stream(2.0)])
    for now in (10.0, 11.0, 12.0):
        parts = observed.collect(now)
    assert row_of(parts).tokens_per_s.n == 2


def test_upstream_row_static_batches_are_named() -> None:
    rng, attempts = Random(1), []
    for batch in range(12):
        began_at = batch * 10.0
        for _ in range(8):
            waited_s = rng.uniform(0.1, 9.0)
            attempts.append(stream(began_at - waited_s, ttft_s=waited_s + 0.5, spent_s=rng.uniform(3, 9.4)))
    row = row_of(seen(*sorted(attempts, key=lambda fact: fact.ended_at)))
    assert row.batching == "static"
    assert row_of(seen(stream(1.0))).batching == ""


def test_upstream_row_quota_is_the_newest_and_the_least_of_an_hour() -> None:
    observed, other = UpstreamObservations(), UpstreamObservations()
    for at, left in ((100.0, 0.1), (1000.0, 0.8)):
        observed.note_quota(QuotaReported("up", at, {"requests": left}))
    other.note_quota(QuotaReported("up", 900.0, {"requests": 0.5, "tokens": 0.2}))
    row = row_of(observed.collect(1001.0), other.collect(1001.0))
    assert row.quota_left == {"requests": 0.8}
    assert row.quota_left_1h == {"requests": 0.1, "tokens": 0.2}
    assert row_of(observed.collect(4000.0)).quota_left_1h == {"requests": 0.8}


def test_upstream_row_breaker_changes_of_an_hour_are_counted() -> None:
    observed = UpstreamObservations()
    for at in (100.0, 2000.0, 3000.0):
        observed.note_breaker(BreakerChanged("up", "open", ""), at)
    assert row_of(observed.collect(3001.0)).n_breaker_changes_1h == 3
    assert row_of(observed.collect(3800.0)).n_breaker_changes_1h == 2


def test_upstream_rows_unseen_upstream_stays_as_it_is() -> None:
    row = UpstreamRow("other", n_attempts=5)
    assert complete_upstreams([row], [seen(stream(1.0))]) == (row,)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.floats(0, 10), st.integers(0, 50)), max_size=30),
       st.integers(1, 3))
def test_complete_upstreams_any_workers_has_all_streams(
        streams: list[tuple[float, float, float, int]], n_workers: int) -> None:
    facts = sorted([stream(*one) for one in streams], key=lambda fact: fact.ended_at)
    row = row_of(*[seen(*facts[worker::n_workers]) for worker in range(n_workers) if facts[worker::n_workers]])
    assert row.tokens_per_s.n <= len(facts)
    assert row.clumped_ratio is None or 0 <= row.clumped_ratio <= 1
