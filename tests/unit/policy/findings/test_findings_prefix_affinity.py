"""Prefix affinity whose belief the answers do not confirm."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, snapshot

WRONG, UNKNOWN = "affinity.belief_wrong", "affinity.hits_unreported"


def answers(**fields: Any) -> Snapshot:
    return snapshot(upstreams=(UpstreamRow("gpu", "openai", **{"n_prefix_answers": 400, **fields}),))


def test_belief_that_answers_do_not_confirm_is_found() -> None:
    found = find_one(WRONG, answers(prefix_hit_ratio=0.4, prefix_belief_ratio=0.7))
    assert (found.where.upstream, found.severity) == ("gpu", "warn")


def test_much_belief_without_any_report_is_found() -> None:
    assert find_one(UNKNOWN, answers(prefix_belief_ratio=0.6)).where.upstream == "gpu"


@pytest.mark.parametrize(("check", "fields"), [
    (WRONG, {"prefix_hit_ratio": 0.6, "prefix_belief_ratio": 0.7}),
    (WRONG, {"prefix_hit_ratio": 0.8, "prefix_belief_ratio": 0.4}),
    (WRONG, {"prefix_hit_ratio": 0.1, "prefix_belief_ratio": 0.7, "n_prefix_answers": 40}),
    (WRONG, {"prefix_belief_ratio": 0.7}),
    (UNKNOWN, {"prefix_belief_ratio": 0.05}),
    (UNKNOWN, {"prefix_belief_ratio": 0.7, "prefix_hit_ratio": 0.0}),
    (UNKNOWN, {"prefix_belief_ratio": 0.7, "n_prefix_answers": 40}),
])
def test_ordinary_hit_rates_are_not_found(check: str, fields: dict[str, Any]) -> None:
    assert find(check, answers(**fields)) == []
