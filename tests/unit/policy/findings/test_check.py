"""The form of a check, and where a finding is."""

from stayfast.core.findings import Finding, FindingSite
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.check import Check


def test_check_of_a_snapshot_returns_its_findings() -> None:
    found = Finding("a.b", "warn", FindingSite(), "One.", "Two.")
    assert list(Check("a.b", "A", lambda snapshot: [found] if snapshot.at else []).find(Snapshot(1.0))) == [found]


def test_sites_overlap_unless_a_field_names_two_things() -> None:
    chat = FindingSite(route="chat")
    assert chat.overlaps(FindingSite())
    assert chat.overlaps(FindingSite(upstream="a"))
    assert not chat.overlaps(FindingSite(route="other", upstream="a"))
    assert not FindingSite(worker=0).overlaps(FindingSite(worker=1))


def test_site_as_text_names_its_fields() -> None:
    assert str(FindingSite(route="chat", upstream="a")) == "route chat, upstream a"
    assert str(FindingSite()) == "this gateway"
