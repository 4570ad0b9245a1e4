"""pipeline.cadence: gaps, stalls, and time for each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import Stall, TokenGaps
from stayfast.pipeline.timing.token_timings import GAPS_PER_EVENT, STALL_AFTER_S, TokenTimings
from stayfast.testing import RecordingSink


def timings_of(*gaps_s: float, then_s: float = 0.0, is_whole: bool = True) -> tuple[TokenTimings, list[float]]:
    """First content at 10, more after each gap, the end after `then_s`; the gaps that listeners were told."""
    sink = RecordingSink()
    cadence, now = TokenTimings("m", "u", sink), 10.0
    cadence.start(now)
    for gap_s in gaps_s:
        now += gap_s
        cadence.note_content(now)
    cadence.end(now + then_s, is_whole=is_whole)
    return cadence, [gap_s for fact in sink.facts_of(TokenGaps) for gap_s in fact.gaps_s]


@given(st.lists(st.floats(0, 0.9), max_size=3 * GAPS_PER_EVENT))
def test_token_timings_report_every_gap_once(gaps_s: list[float]) -> None:
    """In order, in any batches; the longest one is known."""
    cadence, told = timings_of(*gaps_s)
    assert told == pytest.approx(gaps_s, abs=1e-9)
    assert cadence.stalls == []
    assert (cadence.gap_max_s or 0.0) == pytest.approx(max(gaps_s, default=0.0), abs=1e-9)


def test_token_timings_stall_is_long_and_unlike_earlier_gaps() -> None:
    """There are two, and the first does not hide the second."""
    cadence, _ = timings_of(0.1, 0.1, 1.5, 0.1, 1.2, 0.1)
    assert [(round(stall.at, 6), round(stall.seconds, 6)) for stall in cadence.stalls] == [(10.2, 1.5), (11.8, 1.2)]


def test_token_timings_slow_model_does_not_stall() -> None:
    """Its pace is 1.2 s; only the first such gap had no others to compare with."""
    cadence, _ = timings_of(1.2, 1.2, 1.2, 1.2)
    assert len(cadence.stalls) == 1
    cadence, _ = timings_of(0.9, 1.2, 1.2)
    assert cadence.stalls == []


@pytest.mark.parametrize(("then_s", "is_whole", "stalls"), [
    (3.0, False, [Stall(10.5, 3.0)]), (3.0, True, []), (STALL_AFTER_S, False, [])])
def test_token_timings_wait_before_a_cut_may_be_a_stall(then_s: float, is_whole: bool, stalls: list[Stall]) -> None:
    """It is no gap, since nothing came at its end."""
    cadence, told = timings_of(0.25, 0.25, then_s=then_s, is_whole=is_whole)
    assert cadence.stalls == stalls
    assert told == [0.25, 0.25]
    assert cadence.gap_max_s == (3.0 if stalls else 0.25)


def test_token_timings_time_per_token_after_the_first() -> None:
    """(last content - first content) (tokens - 1); unknown for one part or one token."""
    cadence, _ = timings_of(0.25, 0.25, then_s=9.0)
    assert cadence.tpot_s(6) == pytest.approx(0.1)
    assert cadence.tpot_s(1) is None
    assert timings_of()[0].tpot_s(6) is None
    assert TokenTimings("m", "u", RecordingSink()).tpot_s(6) is None


def test_token_timings_attempt_without_content_has_none() -> None:
    sink = RecordingSink()
    cadence = TokenTimings("m", "u", sink)
    cadence.end(99.0, is_whole=False)
    assert (cadence.gap_max_s, cadence.stalls, sink.facts) == (None, [], [])
