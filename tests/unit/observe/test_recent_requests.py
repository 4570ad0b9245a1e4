"""observe.recent_requests: the last requests, within bounds."""

from collections.abc import Iterable
from typing import Any

import pytest

from stayfast.core.events import RequestDone, Stall
from stayfast.core.types import Stage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.recent_requests import RecentConfig, RecentRequests
from tests.unit.observe.fact_rig import attempt, done


def ids(facts: Iterable[RequestDone]) -> list[str]:
    """Their request ids."""
    return [fact.request_id for fact in facts]


def filled(*facts: RequestDone, **config: Any) -> RecentRequests:
    """A ring that has taken these."""
    recent = RecentRequests(RecentConfig(**config))
    for fact in facts:
        handle_facts(recent, [fact])
    return recent


def test_recent_keeps_newest_requests() -> None:
    """Newest first, so many and no more; what is not the end of a request is not kept."""
    recent = filled(*(done(request_id=f"r{n}") for n in range(5)), size=3)
    handle_facts(recent, [attempt()])
    assert ids(recent.newest_first()) == ["r4", "r3", "r2"]
    assert ids(recent.find_by_id("r2")) == ["r2"]
    assert ids(recent.find_by_id("r0")) == []
    assert ids(filled(done(), size=0).newest_first()) == []


def test_recent_id_of_a_job_finds_its_claims_and_no_other_job() -> None:
    recent = filled(*(done(request_id=name) for name in ("job_1-1", "job_1-2", "job_12-1", "job_1_3-1", "r-1")))
    assert ids(recent.find_by_id("job_1")) == ["job_1-2", "job_1-1"]
    assert ids(recent.find_by_id("job_1_3")) == ["job_1_3-1"]
    assert ids(recent.find_by_id("r")) == []


@pytest.mark.parametrize("changes", [
    {"status": 502}, {"status": 499}, {"status": 404}, {"over_stage": Stage.CALL}, {"degraded": "partial"}, {"ttft_s": 2.0},
    {"attempts": (attempt(), attempt(n_attempt=2))}, {"attempts": (attempt(stalls=(Stall(1.2, 3.0),)),)}])
def test_recent_notable_requests_outlive_others(changes: dict[str, object]) -> None:
    """Good traffic pushes it out of the first ring, not out of the second."""
    recent = filled(done(request_id="odd", **changes), *(done(request_id=f"r{n}") for n in range(5)), size=3)
    assert "odd" not in ids(recent.newest_first())
    assert ids(recent.newest_first(is_notable=True)) == ["odd"]
    assert ids(recent.find_by_id("odd")) == ["odd"]


def test_recent_max_bytes_bounds_memory() -> None:
    """However long what others chose in them is."""
    recent = filled(*(done(request_id=f"r{n}", model="x" * 50_000) for n in range(50)), size=100, max_bytes=110_000)
    assert ids(recent.newest_first()) == ["r49", "r48"]


def test_recent_huge_request_is_not_stored() -> None:
    """However large somebody managed to make it."""
    recent = filled(*(done(request_id=f"r{n}") for n in range(5)), done(request_id="odd", error="x" * 1_000_000))
    assert ids(recent.newest_first()) == ["r4", "r3", "r2", "r1", "r0"]


def test_recent_same_id_returns_both_requests() -> None:
    """Clients choose ids: both are found, the newest first."""
    recent = filled(done(wall_at=1.0), done(wall_at=2.0))
    assert [fact.wall_at for fact in recent.find_by_id("r")] == [2.0, 1.0]


@pytest.mark.parametrize("bad", [{"size": -1}, {"slow_s": 0.0}, {"slow_s": float("nan")}, {"max_bytes": 1}])
def test_settings_have_bounds(bad: dict[str, Any]) -> None:
    """The field is named."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        RecentConfig(**bad)
