"""Provider and engine prompt caches that serve less than they could."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, TrafficRow, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, prompts, snapshot, spread, traffic


def shares(shared: float = 0.8, cached: float = 0.1, n: int = 500, mode: str = "off", **fields: Any) -> Snapshot:
    shape = {"input_tokens": spread(3000), "shared_prefix_ratio": shared, **fields}
    row = traffic(n_input_tokens=3_000_000, n_cached_tokens=int(3_000_000 * cached))
    return snapshot({"routes": {"chat": {"prefix": {"mode": mode}}}}, prompts=(prompts(n=n, **shape),), traffic=(row,))


def test_shared_prefix_that_is_rarely_read_is_found() -> None:
    finding = find_one("prompt.cache_rarely_read", shares())
    assert finding.do[0].patch == "routes:\n  chat:\n    prefix:\n      mode: auto"


def test_rarely_read_prefix_with_layout_gets_affinity() -> None:
    assert "affinity" in find_one("prompt.cache_rarely_read", shares(mode="auto")).do[0].patch


@pytest.mark.parametrize("changes", [
    {"cached": 0.65}, {"shared": 0.2}, {"input_tokens": spread(600)}, {"n": 20}, {"shared": 0.6, "cached": 0.4}])
def test_prompts_that_no_cache_could_serve_are_not_rarely_read(changes: dict[str, Any]) -> None:
    """Read well, nothing in common, too short for a provider's cache, too few, and about as much as is shared."""
    assert find("prompt.cache_rarely_read", shares(**changes)) == []


def test_instructions_that_begin_differently_are_found() -> None:
    changed = shares(0.02, 0.0, system_tokens=spread(2500))
    assert "move_volatile: true" in find_one("prompt.prefix_differs", changed).do[0].patch


@pytest.mark.parametrize("changes", [
    {"shared": 0.02, "cached": 0.5, "system_tokens": spread(2500)},  # many applications, each with a stable prefix
    {"shared": 0.02, "cached": 0.0, "system_tokens": spread(200)},  # no instructions: nothing could be shared
    {"shared": 0.02, "cached": 0.0, "system_tokens": spread(1200)},  # most of the prompt is not instructions
    {"shared": 0.9, "cached": 0.0, "system_tokens": spread(2500)}])
def test_prompts_without_a_moving_prefix_do_not_differ(changes: dict[str, Any]) -> None:
    assert find("prompt.prefix_differs", shares(**changes)) == []


def dropped(now: float, before: float, n_now: int = 100, n_hour: int = 1000) -> Snapshot:
    rows: list[TrafficRow] = []
    for window_s, n, cached in ((300.0, n_now, now * n_now), (3600.0, n_hour, now * n_now + before * (n_hour - n_now))):
        rows.append(traffic(window_s, upstream="north", n=n, n_input_tokens=1000 * n, n_cached_tokens=int(1000 * cached)))
    return snapshot(traffic=tuple(rows))


def test_share_that_fell_is_found_at_its_upstream() -> None:
    finding = find_one("prompt.cache_dropped", dropped(0.1, 0.7))
    assert (finding.where.route, finding.where.upstream) == ("chat", "north")


@pytest.mark.parametrize("observed", [dropped(0.5, 0.7), dropped(0.02, 0.1), dropped(0.1, 0.7, n_now=30),
                                      dropped(0.1, 0.7, n_now=900)])
def test_share_that_varies_was_not_dropped(observed: Snapshot) -> None:
    """A usual change, little to lose, few requests, and no hour before."""
    assert find("prompt.cache_dropped", observed) == []


def engine(hit: float, shared: float = 0.8, names: tuple[str, ...] = ("gpu",), n: int = 500) -> Snapshot:
    rows = tuple(UpstreamRow(name, n_attempts=200, engine={"kv_hit_ratio": hit}) for name in names)
    return snapshot({"routes": {"own": {"upstreams": list(names)}}}, upstreams=rows,
                    prompts=(prompts("own", n=n, shared_prefix_ratio=shared),))


def test_cold_prefix_cache_of_an_engine_is_found() -> None:
    assert find_one("engine.kv_hit_low", engine(0.2)).where.upstream == "gpu"


def test_cold_prefix_cache_of_two_engines_gets_affinity() -> None:
    findings = find("engine.kv_hit_low", engine(0.2, names=("gpu", "north")))
    assert [("affinity" in finding.do[0].patch) for finding in findings] == [True, True]


@pytest.mark.parametrize("observed", [engine(0.7), engine(0.2, shared=0.1), engine(0.5, shared=0.65), engine(0.2, n=10)])
def test_engine_with_different_prompts_has_no_cold_cache(observed: Snapshot) -> None:
    assert find("engine.kv_hit_low", observed) == []
