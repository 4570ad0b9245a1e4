"""Histories in a settings file."""

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, load_settings

FILE = """
upstreams: {{u: {{kind: simulated}}}}
routes:
  m: {{upstreams: [u], context: {{history: {history}}}}}
  small: {{upstreams: [u]}}
  other: {{upstreams: [u], context: {{history: {{mode: trim}}}}}}
"""


def problems(history: str) -> str:
    """What is wrong; empty: nothing."""
    try:
        load_settings(SettingsText("f.yaml", FILE.format(history=history)), {}, kinds=KINDS)
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("history", "where", "message"), [
    ("{mode: summarize}", "routes.m.context.history", "must name the route"),
    ("{mode: summarize, by: smal}", "routes.m.context.history.by", "no other route is named"),
    ("{mode: summarize, by: m}", "routes.m.context.history.by", "no other route is named"),
    ("{mode: summarize, by: other}", "routes.m.context.history.by", "shortens histories itself"),
    ("{mode: summarize, by: small, store: hot}", "routes.m.context.history.store", "unknown store"),
    ("{mode: trim, raw_turns: 5}", "routes.m.context.history.raw_turns", "from 2 to 4"),
    ("{mode: trim, pins: ['(']}", "routes.m.context.history", "regular expression")])
def test_history_settings_with_an_error_name_the_field(history: str, where: str, message: str) -> None:
    """Found at load."""
    found = problems(history)
    assert where in found
    assert message in found


HISTORIES = ("{mode: summarize, by: small}", "{mode: trim, pins: [refund]}", "{mode: off, by: small}")


@pytest.mark.parametrize("history", HISTORIES)
def test_history_settings_without_an_error_load(history: str) -> None:
    """Summaries, trimming, and settings that are kept for later."""
    assert problems(history) == ""
