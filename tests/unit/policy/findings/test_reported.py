"""Facts of other parts as findings."""

from typing import Any

import pytest
import yaml

from stayfast.core.events import ConnectionReused, EngineState, JudgeUnclear, PrefixFinding
from stayfast.lab.doctor.scene import merge_trees
from stayfast.policy.findings.registry import all_kinds
from stayfast.policy.findings.reported import finding_of, prefix_finding
from stayfast.settings.load import SettingsText, load_settings

BASE: dict[str, Any] = {
    "upstreams": {"a": {"kind": "openai", "key": "k"}}, "routes": {"chat": {"upstreams": ["a"], "cache": {"mode": "exact"}}}}


@pytest.mark.parametrize("fact", [
    PrefixFinding("chat", "a", "gpt", "moves", "system[0]", 12, "date", 3000, 1.5),
    PrefixFinding("chat", "a", "gpt", "unread", "", 0, "", 3000, None),
    PrefixFinding("chat", "a", "gpt", "refused", "prompt_cache_key", 0, "", 0, None),
    JudgeUnclear("chat", "judge", 20, "empty reply"), EngineState("crashed", 12, "signal 9")])
def test_fact_becomes_a_finding_of_a_known_kind_with_a_valid_patch(
        fact: PrefixFinding | JudgeUnclear | EngineState) -> None:
    found = prefix_finding(fact, 5.0) if isinstance(fact, PrefixFinding) else finding_of(fact, 5.0)
    assert found is not None
    assert found.id in all_kinds()
    assert found.since == 5.0
    assert found.evidence
    assert found.do
    for patch in (yaml.safe_load(change.patch) for change in found.do if change.patch):
        assert load_settings(SettingsText("patched", yaml.safe_dump(merge_trees(BASE, patch))), {}).routes


def test_other_facts_are_no_findings() -> None:
    assert finding_of(ConnectionReused("a")) is None
    assert finding_of(EngineState("ready")) is None
