"""Shared stores."""

from typing import Any

import pytest
from msgspec.structs import replace

from stayfast.core.snapshot import Snapshot, StoreRow
from tests.unit.policy.findings.check_rig import find, find_one, snapshot, spread

REDIS = {"stores": {"redis": {"kind": "redis", "url": "redis://127.0.0.1:6379/0", "timeout_s": 0.02}}}


def store(**fields: Any) -> Snapshot:
    row = StoreRow("redis", "redis", **{"purposes": ("cache",), "n_calls": 500, "call_s": spread(0.001, 0.003),
                                        "n_evicted": 0, "eviction_policy": "noeviction", "memory_ratio": 0.4, **fields})
    return snapshot(REDIS, stores=(row,))


FAULTS = {
    "store.down": store(is_open=False, why_not="connection refused"),
    "store.slow": store(call_s=spread(0.005, 0.015)),
    "store.evicts_state": store(purposes=("cache", "fleet"), n_evicted=40, eviction_policy="allkeys-lru"),
    "store.nearly_full": store(memory_ratio=0.97),
}


@pytest.mark.parametrize("check", FAULTS)
def test_sick_store_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.store == "redis"


@pytest.mark.parametrize(("check", "observed"), [
    ("store.down", store(n_failed=100)),
    ("store.down", store(n_calls=5, n_failed=4)),
    ("store.slow", store(call_s=spread(0.002, 0.009))),
    ("store.slow", store(call_s=spread(0.005, 0.015, n=20))),
    ("store.slow", store(purposes=("fleet",), call_s=spread(0.005, 0.015))),  # it has no limit of 20 ms
    ("store.evicts_state", store(n_evicted=400, eviction_policy="allkeys-lru")),  # a cache evicts
    ("store.evicts_state", store(purposes=("cache", "fleet"), eviction_policy="allkeys-lru")),
    ("store.nearly_full", store(memory_ratio=0.97, eviction_policy="allkeys-lru")),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_store_with_failing_calls_is_down_not_slow() -> None:
    observed = store(n_failed=400, call_s=spread(0.02, 0.02))
    assert (len(find("store.down", observed)), find("store.slow", observed)) == (1, [])


def test_slow_file_is_not_advised_like_a_server() -> None:
    jobs = {"name": "jobs", "kind": "sqlite", "purposes": ("jobs",)}
    observed = store(call_s=spread(0.02, 0.2))
    row = replace(observed.stores[0], **jobs)
    assert find("store.slow", replace(observed, stores=(row,))) == []
    slow = replace(row, call_s=spread(0.5, 2.0))
    found = find_one("store.slow", replace(observed, stores=(slow,)))
    assert "zone" not in " ".join(change.effect for change in found.do)
