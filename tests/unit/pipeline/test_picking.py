"""What a route's choice remembers of the answers."""

import pytest

from stayfast.core.types import AnswerSummary
from stayfast.pipeline.routing.selector import PickConfig, RoutingFeedback, UpstreamSelector
from stayfast.policy.routing.affinity import AffinityConfig


@pytest.mark.parametrize(("is_stored", "n_remembered"), [(True, 1), (False, 0)])
def test_only_what_can_be_gone_on_from_is_remembered(is_stored: bool, n_remembered: int) -> None:
    """A chat answer has an id as well, but nobody names it: it would only push the others out."""
    picking, summary = UpstreamSelector(PickConfig(affinity=AffinityConfig(mode="sessions"))), AnswerSummary()
    summary.response_id = "resp_1"
    RoutingFeedback(picking, 10, [], 0, is_stored).note_first_token("a", 0.1, summary, is_whole=True)
    assert len(picking._responses) == n_remembered
