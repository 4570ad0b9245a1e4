"""Versions of system prompts that cost more than they must."""

from typing import Any

import msgspec
import pytest

from stayfast.core.prompt_versions import OfferedTool, PromptChange, PromptPlace, PromptVersionRow, RepeatedPart
from stayfast.core.snapshot import Snapshot
from tests.unit.policy.findings.check_rig import find, find_one, snapshot

PLACE = PromptPlace("messages[0].content", 812, "a date", 0.2, 1600.0)
USED, IDLE = OfferedTool("search", 900.0, 40), OfferedTool("refund", 1400.0)
ROW = PromptVersionRow("chat", "a" * 64, n=400, n_samples=200, n_tokens=2000.0, system_tokens=2000.0, n_a_day=10_000.0,
                       usd_per_mtok=3.0, usd_per_mtok_read=0.3)
BEFORE = msgspec.structs.replace(ROW, id="b" * 64, cached_ratio=0.9)
FAULTS: dict[str, dict[str, Any]] = {
    "prompt.repeated_paragraphs": {"repeats": (RepeatedPart("instructions", 900, "instructions", 40, 150.0),)},
    "prompt.moving_part": {"moving": PLACE, "n_moved": 190},
    "prompt.tools_unused": {"tools": (USED, IDLE), "n_tool_ends": 50},
    "prompt.long_examples": {"n_examples": 4, "example_tokens": 800.0},
    "prompt.version_broke_cache": {"change": PromptChange(BEFORE.id, PLACE), "cached_ratio": 0.1},
}


def observed(*, diet: bool = False, **fields: Any) -> Snapshot:
    changes = {"routes": {"chat": {"context": {"diet": {"drop_repeats": True}}}}} if diet else {}
    return snapshot(changes, prompt_versions=(BEFORE, msgspec.structs.replace(ROW, **fields)))


@pytest.mark.parametrize("check", FAULTS)
def test_version_is_found(check: str) -> None:
    finding = find_one(check, observed(**FAULTS[check]))
    assert finding.where.route == "chat"
    assert "USD a day" in f"{finding.summary} {finding.do}"


@pytest.mark.parametrize("check", FAULTS)
def test_few_requests_prove_nothing(check: str) -> None:
    assert find(check, observed(**FAULTS[check], n=20)) == []


@pytest.mark.parametrize(("check", "changes"), [
    ("prompt.repeated_paragraphs", {"repeats": (RepeatedPart("instructions", 900, "instructions", 40, 60.0),)}),
    ("prompt.moving_part", {"n_moved": 3}),  # once a day
    ("prompt.moving_part", {"moving": PromptPlace("system[1]", 5, "a date", 0.7, 600.0)}),  # at the end, as it should be
    ("prompt.moving_part", {"moving": PromptPlace("system[0]", 5, "a date", 0.1, 300.0)}),  # a short prompt
    ("prompt.moving_part", {"cached_ratio": 0.8}),
    ("prompt.moving_part", {"n_samples": 10, "n_moved": 9}),
    ("prompt.tools_unused", {"tools": (USED, msgspec.structs.replace(IDLE, n_calls=1))}),  # rarely is not never
    ("prompt.tools_unused", {"tools": (IDLE,), "n_tool_ends": 3}),  # called, but nobody sends the call again
    ("prompt.tools_unused", {"n_samples": 50}),
    ("prompt.tools_unused", {"tools": (USED, OfferedTool("refund", 400.0))}),
    ("prompt.long_examples", {"example_tokens": 300.0}),
    ("prompt.long_examples", {"cached_ratio": 0.9}),
    ("prompt.version_broke_cache", {"cached_ratio": 0.7}),
    ("prompt.version_broke_cache", {"n_tokens": 600.0}),  # too short for the cache, and cheaper
    ("prompt.version_broke_cache", {"change": None}),
    ("prompt.version_broke_cache", {"change": PromptChange("c" * 64, PLACE)}),  # the one before is not known any more
])
def test_look_alike_is_not_found(check: str, changes: dict[str, Any]) -> None:
    assert find(check, observed(**{**FAULTS[check], **changes})) == []


def test_repeated_paragraph_names_both_positions_and_the_cost() -> None:
    finding = find_one("prompt.repeated_paragraphs", observed(**FAULTS["prompt.repeated_paragraphs"]))
    assert "byte 900 of instructions repeats byte 40 (100.0 %)" in finding.because
    assert "150 tokens of each request, 4.50 USD a day" in finding.summary  # 150 * 10,000 * 3 / 1,000,000
    assert "drop_repeats" in finding.do[0].patch


def test_repeated_paragraph_that_is_left_out_is_no_finding() -> None:
    fields = FAULTS["prompt.repeated_paragraphs"]
    assert find("prompt.repeated_paragraphs", observed(diet=True, **fields)) == []
    (repeat,) = fields["repeats"]
    similar = msgspec.structs.replace(repeat, overlap=0.95)
    finding = find_one("prompt.repeated_paragraphs", observed(diet=True, repeats=(similar,)))
    assert [change.patch for change in finding.do] == [""]


@pytest.mark.parametrize(("kind", "patch"), [("a date", "move_volatile"), ("order", "sort_tools"), ("a number", "")])
def test_moving_part_names_the_byte_and_what_helps(kind: str, patch: str) -> None:
    place = msgspec.structs.replace(PLACE, kind=kind)
    finding = find_one("prompt.moving_part", observed(moving=place, n_moved=190))
    assert "byte 812 of messages[0].content" in finding.summary
    assert patch in finding.do[0].patch
    assert bool(patch) is bool(finding.do[0].patch)


def test_broken_cache_names_both_versions_and_the_cost_of_a_day() -> None:
    finding = find_one("prompt.version_broke_cache", observed(**FAULTS["prompt.version_broke_cache"]))
    assert ROW.id[:12] in finding.summary
    assert BEFORE.id[:12] in finding.summary
    assert "43.20 USD a day more" in finding.summary  # 2,000 * 0.8 * 2.7 * 10,000 / 1,000,000
