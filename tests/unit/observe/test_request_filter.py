"""observe.request_filter: conditions on finished requests."""

import pytest

from stayfast.observe.request_filter import RequestFilter, wait_s
from tests.unit.observe.fact_rig import attempt, done

HEDGED = done(route="chat", upstream="b", status=503, wall_at=10.0, attempts=(attempt(upstream="a"), attempt(upstream="b")))


@pytest.mark.parametrize(("wanted", "is_found"), [
    (RequestFilter(), True), (RequestFilter(route="chat"), True), (RequestFilter(route="cha"), False),
    (RequestFilter(upstream="a"), True), (RequestFilter(upstream="c"), False),
    (RequestFilter(status="503"), True), (RequestFilter(status="5xx"), True), (RequestFilter(status="4xx"), False),
    (RequestFilter(outcome="failed"), True), (RequestFilter(outcome="ok"), False),
    (RequestFilter(since=10.0), True), (RequestFilter(since=10.5), False),
    (RequestFilter(route="chat", outcome="ok"), False),
])
def test_request_filter_all_conditions_hold(wanted: RequestFilter, is_found: bool) -> None:
    """An upstream counts if any attempt went there."""
    assert wanted.matches(HEDGED) is is_found


def test_wait_without_first_token_is_whole_time() -> None:
    """A request that failed after 30 s was slow, although it has no time to the first token."""
    assert wait_s(done(ttft_s=0.5, accepted_at=1.0, ended_at=31.0)) == 0.5
    assert wait_s(done(ttft_s=None, accepted_at=1.0, ended_at=31.0)) == 30.0
