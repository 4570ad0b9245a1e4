"""Response caches that hit too little, or serve what they should not."""

from typing import Any

import msgspec
import pytest

from stayfast.core.snapshot import CacheRow, Snapshot
from tests.unit.policy.findings.check_rig import NOW, find, find_one, prompts, snapshot, traffic

MIB = 2**20


def cached(settings: dict[str, Any] | None = None, *, n_repeated: int | None = None, n_prompts: int = 800,
           results: dict[str, int] | None = None, **fields: Any) -> Snapshot:
    row = CacheRow("chat", **{"mode": "exact", "n_lookups": 1000, "n_exact": 100, "n_evicted": 0, **fields})
    return snapshot({"routes": {"chat": {"cache": {"mode": row.mode, "max_error": "1%", "max_bytes": 64 * MIB,
                                                   **(settings or {})}}}},
                    caches=(row,), prompts=(prompts(n=n_prompts, n_repeated=n_repeated),),
                    traffic=(traffic(cache=results or {}),))


FAULTS = {
    "cache.hits_low": cached(),
    "cache.evicts_early": cached(n_evicted=800, n_exact=200, n_repeated=600),
    "cache.expires_early": cached({"ttl_s": 300.0}, n_exact=200, n_repeated=600),
    "cache.bypassed": cached(n_lookups=100, n_exact=50, n_bypassed=900),
    "semantic.in_shadow": cached(mode="semantic", semantic_state="shadow", n_lookups=5000),
    "semantic.error_over_bound": cached(mode="semantic", semantic_state="live", n_semantic=50, error_most=0.04),
    "cache.stale": cached(results={"hit": 400, "stale": 400}),
    "cache.candidate": msgspec.structs.replace(cached({"mode": "off"}, n_repeated=400), caches=()),
}


@pytest.mark.parametrize("check", FAULTS)
def test_faulty_cache_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.route == "chat"


@pytest.mark.parametrize(("check", "observed"), [
    ("cache.hits_low", cached(n_exact=310)),
    ("cache.hits_low", cached(n_lookups=150, n_exact=5)),
    ("cache.hits_low", cached(n_exact=100, n_coalesced=250)),  # equal requests at the same time share a call
    ("cache.hits_low", cached(n_evicted=800, n_exact=200, n_repeated=600)),  # its reason is found
    ("cache.hits_low", msgspec.structs.replace(cached(), started_at=NOW - 600)),  # it fills
    ("cache.evicts_early", cached(n_evicted=800, n_exact=200, n_repeated=150)),  # questions do not return: no size helps
    ("cache.evicts_early", cached(n_evicted=390, n_exact=610)),  # single questions leave, the others hit
    ("cache.evicts_early", cached(n_evicted=None, n_exact=200)),  # the server does not count them for us
    ("cache.expires_early", cached({"ttl_s": 300.0}, n_exact=700)),  # news: they live for minutes and hit
    ("cache.expires_early", cached({"ttl_s": 3600.0}, n_exact=200)),
    ("cache.bypassed", cached(n_bypassed=900)),
    ("cache.bypassed", cached(n_lookups=20, n_bypassed=100)),
    ("semantic.in_shadow", cached(mode="semantic", semantic_state="shadow", n_lookups=900)),  # it begins to learn
    ("semantic.in_shadow", cached(mode="semantic", semantic_state="live", n_lookups=5000)),
    ("semantic.error_over_bound", cached(mode="semantic", semantic_state="live", n_semantic=50, error_most=0.009)),
    ("semantic.error_over_bound", cached(mode="semantic", semantic_state="shadow", n_semantic=0, error_most=0.9)),
    ("cache.stale", cached(results={"hit": 700, "stale": 200})),
    ("cache.candidate", cached(n_repeated=400)),  # it has a cache
    ("cache.candidate", cached({"mode": "off"}, n_repeated=100)),
    ("cache.candidate", cached({"mode": "off"}, n_repeated=None)),  # not measured
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_low_hits_of_returning_questions_name_answers_that_are_not_stored() -> None:
    assert "max_tokens" in find_one("cache.hits_low", cached(n_repeated=600)).because
    assert "hardly repeat" in find_one("cache.hits_low", cached(n_repeated=20)).because


def test_cache_in_a_shared_store_gets_a_larger_store() -> None:
    observed = cached({"store": "file"}, n_evicted=800, n_exact=200)
    observed.settings["stores"] = {"file": {"kind": "sqlite", "path": "/tmp/answers.db", "max_bytes": 100 * MIB}}
    assert f"max_bytes: {400 * MIB}" in find_one("cache.evicts_early", observed).do[0].patch


def test_error_of_a_fixed_threshold_is_urgent_and_the_bound_returns() -> None:
    observed = cached({"threshold": 0.9}, mode="semantic", semantic_state="fixed", n_semantic=50, error_most=0.04)
    finding = find_one("semantic.error_over_bound", observed)
    assert (finding.severity, "threshold: null" in finding.do[0].patch) == ("act", True)


@pytest.mark.parametrize("written", ["1%", "1 %", 0.01, "0.01"])
def test_bound_is_read_in_each_form(written: object) -> None:
    observed = cached({"max_error": written}, mode="semantic", semantic_state="live", n_semantic=50, error_most=0.011)
    assert find("semantic.error_over_bound", observed) != []
