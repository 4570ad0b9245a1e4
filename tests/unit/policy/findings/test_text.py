"""Findings as text."""

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.policy.findings.text import write_finding, write_findings

FOUND = Finding("a.cause", "act", FindingSite(route="chat"), "The p99 is 8 s.", "It is slow.",
                (Evidence("late", 0.123, "ratio", 300.0, "metric"), Evidence("p99", 8.0, "s")),
                (SettingsChange("Less.", "routes:\n  chat:\n    deadline: 3", "measured"),), "p99 falls")


def test_finding_has_all_parts_and_an_indented_patch() -> None:
    assert write_finding(FOUND, since="02:10:00") == [
        "ACT   a.cause  route chat, since 02:10:00", "      The p99 is 8 s.", "      because: It is slow.",
        "      evidence: late 12.3 % (5 min, metric); p99 8 s (now)", "      do: Less. (measured)", "        routes:",
        "          chat:", "            deadline: 3", "      verify: p99 falls"]


def test_change_of_unknown_effect_is_marked_as_such() -> None:
    found = Finding("a.cause", "act", FindingSite(), "S.", "B.", (), (SettingsChange("Look.", confidence="unknown"),))
    assert "      do: Look. (effect unknown)" in write_finding(found)


def test_consequences_are_counted_or_listed() -> None:
    hidden = Finding("a.slow", "warn", FindingSite(route="chat"), "Slow.", "Slow.", hidden_by="a.cause")
    assert write_findings([FOUND, hidden])[-1] == "      hides 1 consequence, --all shows it"
    assert "WARN  a.slow  route chat (explained by a.cause)" in write_findings([FOUND, hidden], is_all=True)


def test_control_characters_never_reach_the_terminal() -> None:
    """A snapshot may be a file of somebody else; its names and sentences could move the cursor or retitle the window."""
    evil = "\x1b]0;t\x07\x9b31m\u202e"
    found = Finding(evil, "act", FindingSite(route=evil), evil, evil, (Evidence(evil, 1.0, evil, None, evil),),
                    (SettingsChange(evil, f"routes:\n  {evil}: 1"),), evil)
    assert all(line.isprintable() for line in write_findings([found], since_of={f"{evil} route {evil}": evil}))
