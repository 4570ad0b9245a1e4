"""Snapshots with one thing wrong, and what every finding must have."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import msgspec
import yaml

from stayfast.core.findings import Finding
from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TrafficRow
from stayfast.policy.findings.registry import all_kinds
from stayfast.settings.load import SettingsText, load_settings

NOW = 1_800_000_000.0
BASE: dict[str, Any] = {
    "upstreams": {
        "north": {"kind": "openai", "base_url": "https://north.example/v1", "key": "k", "keepalive_s": 50.0},
        "south": {"kind": "openai", "base_url": "https://south.example/v1", "key": "k"},
        "gpu": {"kind": "openai", "base_url": "http://127.0.0.1:8000/v1", "key": "k"}},
    "routes": {
        "chat": {"upstreams": ["north", "south"], "cache": {"mode": "off", "ttl_s": 86400.0}, "hedge": {"mode": "auto"}},
        "own": {"upstreams": ["gpu"]}},
    "server": {"keys": {name: f"sha256:{n:064x}" for n, name in enumerate(["acme", "beta", "small"])}},
    "tenants": {"acme": {"quota": {"tokens_per_minute": 100_000}}},
}


def spread(p50: float, p95: float | None = None, p99: float | None = None, n: int = 500) -> Spread:
    """Percentiles; a missing one is the one before."""
    p95 = p50 if p95 is None else p95
    p99 = p95 if p99 is None else p99
    return Spread(n, p50, p95, p99, p99)


def traffic(window_s: float = 3600.0, route: str = "chat", upstream: str = "", n: int = 1000, **fields: Any) -> TrafficRow:
    """Streams with a p50 of 400 ms."""
    return TrafficRow(route, upstream, window_s, n, **{"n_streamed": n, "n_attempts": n, "ttft_s": spread(0.4, 0.7, 0.9, n),
                                                       "e2e_s": spread(2.0, 4.0, 6.0, n), "tpot_s": spread(0.01), **fields})


def prompts(route: str = "chat", n: int = 500, **fields: Any) -> PromptRow:
    return PromptRow(route, n, **fields)


def snapshot(changes: Mapping[str, Any] | None = None, **fields: Any) -> Snapshot:
    """A gateway that has run for two hours. changes: of the settings."""
    return Snapshot(NOW, "test", started_at=NOW - 7200.0, settings=merge(BASE, changes or {}), **fields)


def merge(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = deepcopy(dict(tree))
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def find(check: str, observed: Snapshot) -> list[Finding]:
    """The findings of one check."""
    return [finding for finding in all_kinds()[check].find(observed) if finding.id == check]


def find_one(check: str, observed: Snapshot) -> Finding:
    """The only finding of a check, with all that a reader needs."""
    [finding] = find(check, observed)
    assert all((finding.evidence, finding.do, finding.verify, *(one.source for one in finding.evidence)))
    assert (finding.summary[-1], finding.because[-1]) == (".", ".")
    assert any(digit in finding.summary for digit in "0123456789")
    check_patches([finding], observed)
    return finding


def check_patches(findings: Iterable[Finding], observed: Snapshot) -> None:
    """Each patch merged into the settings is accepted, as by `stayfast check`."""
    for patch in (change.patch for finding in findings for change in finding.do if change.patch):
        tree = merge(observed.settings, yaml.safe_load(patch))
        load_settings(SettingsText("patched", msgspec.json.encode(tree).decode()), {})
