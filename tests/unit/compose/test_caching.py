"""What a route's cache is made of, and what a reload leaves of it."""

import asyncio
from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.pipeline.caching import Caching
from stayfast.pipeline.stages.cache import ExactCache, NoCache
from stayfast.settings import Source, load
from stayfast.stores.base import Kept
from stayfast.testing import SimLoop

TEXT = """
upstreams:
  one: {kind: openai, base_url: "http://one/v1", key: k, limit: {most: 50}}
  two: {kind: openai, base_url: "http://two/v1", key: k}
routes:
  kept: {upstreams: [one], model: small, cache: {mode: exact, epoch: a}}
  plain: {upstreams: [one]}
"""


def system(text: str, old: System | None = None) -> System:
    """The system of these settings."""
    settings = load(Source("test", text), {})
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    loop.close()
    return built


def cache_of(built: System) -> Caching | None:
    """That of the route that has one."""
    return built.gateway.router.routes["kept"].terms.cache


@pytest.mark.parametrize(("old", "new", "is_same"), [
    ("plain:", "other:", True), ("most: 50", "most: 60", True), ("key: k,", "key: other,", True),
    ("epoch: a", "epoch: b", False), ("model: small", "model: large", False), ("[one], model", "[two], model", False),
    ("http://one/v1", "http://elsewhere/v1", False), ("mode: exact,", "mode: exact, ttl_s: 5,", False),
])
def test_a_reload_keeps_what_is_still_true(old: str, new: str, is_same: bool) -> None:
    """Another model, place, epoch or rule begins with nothing; whatever decides no answer leaves it alone."""
    before = system(TEXT)
    after = system(TEXT.replace(old, new), before)
    assert (cache_of(after) is cache_of(before)) is is_same


def test_a_gateway_without_caches_has_no_stage_for_them() -> None:
    """Off is the null object."""
    assert isinstance(system(TEXT).gateway.cache, ExactCache)
    off = system(TEXT.replace("mode: exact", '"mode": "off"'))
    assert isinstance(off.gateway.cache, NoCache)
    assert cache_of(off) is None
    assert system(TEXT).gateway.router.routes["plain"].terms.cache is None


def test_what_is_kept_is_seen() -> None:
    """Bytes and entries by route, in /metrics."""
    built = system(TEXT)
    caching = cache_of(built)
    assert caching is not None
    asyncio.run(caching.store.put(b"k" * 32, Kept(b"x" * 1000, 1.0)))
    _, text = asyncio.run(built.metrics())
    lines = text.decode().splitlines()
    assert 'stayfast_cache_entries{route="kept"} 1' in lines
    assert f'stayfast_cache_bytes{{route="kept"}} {caching.store.n_bytes}' in lines
