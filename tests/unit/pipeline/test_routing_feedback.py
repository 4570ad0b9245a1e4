"""What a route's choice remembers of the answers."""

import pytest

from stayfast.core.types import AnswerSummary
from stayfast.pipeline.routing.selector import PickConfig, RoutingFeedback, UpstreamSelector
from stayfast.policy.routing.affinity import AffinityConfig


@pytest.mark.parametrize(("is_stored", "n_remembered"), [(True, 1), (False, 0)])
def test_routing_feedback_records_only_stored_responses(is_stored: bool, n_remembered: int) -> None:
    """A chat answer has an id, too, but no request refers to it: it would displace others."""
    picking, summary = UpstreamSelector(PickConfig(affinity=AffinityConfig(mode="sessions"))), AnswerSummary()
    summary.response_id = "resp_1"
    RoutingFeedback(picking, 10, [], 0, is_stored, "m").note_first_token("a", 0.1, summary, is_whole=True)
    assert picking.n_responses == n_remembered
