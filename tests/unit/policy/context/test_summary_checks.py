"""Checks of a summary against the turns that it covers."""

from stayfast.core.context import Summary, TurnText
from stayfast.policy.context.summary_checks import check_summary, find_pins


def test_check_summary_without_rules_broken_is_adopted() -> None:
    """A summary that keeps all pins."""
    source = [TurnText("user", "hello", 1)]
    assert check_summary(source, Summary(pinned=find_pins(source))) == ()
