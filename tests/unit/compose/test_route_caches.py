"""What a route's cache is made of, and what a reload leaves of it."""

import asyncio
from random import Random

import pytest

from stayfast.compose.caching import purge_old_epochs
from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.types import Api, Usage
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.pipeline.cache.route_cache import MAX_IDENTITIES, RouteCache
from stayfast.settings import SettingsText, load_settings
from stayfast.stores.base import CachedAnswer
from stayfast.testing import SimLoop

TEXT = """
upstreams:
  one: {kind: openai, base_url: "http://one/v1", key: k, limit: {max: 50}}
  two: {kind: openai, base_url: "http://two/v1", key: k}
stores:
  named: {kind: memory}
routes:
  kept: {upstreams: [one], model: small, cache: {mode: exact, epoch: a}}
  plain: {upstreams: [one]}
"""


def system(text: str, old: System | None = None) -> System:
    """The system of these settings."""
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    loop.close()
    return built


def cache_of(built: System) -> RouteCache | None:
    """That of the route that has one."""
    return built.gateway.router.routes["kept"].policy.cache


@pytest.mark.parametrize(("old", "new", "is_same"), [
    ("plain:", "other:", True), ("max: 50", "max: 60", True), ("key: k,", "key: other,", True),
    ("epoch: a", "epoch: b", False), ("model: small", "model: large", False), ("[one], model", "[two], model", False),
    ("http://one/v1", "http://elsewhere/v1", False), ("mode: exact,", "mode: exact, max_bytes: 2000000,", False),
    ("mode: exact,", "mode: exact, store: named,", False),
])
def test_reload_keeps_a_cache_with_valid_answers(old: str, new: str, is_same: bool) -> None:
    """Another model, upstream, epoch or size starts with an empty cache."""
    before = system(TEXT)
    after = system(TEXT.replace(old, new), before)
    was, its = cache_of(before), cache_of(after)
    assert was is not None
    assert its is not None
    assert (its.store is was.store, its.refreshing is was.refreshing) == (is_same, is_same)


def test_reload_purges_the_old_epoch_from_a_named_memory() -> None:
    """The answers of other routes stay; the first epoch, set again, has no answers."""
    async def main() -> None:
        text = TEXT.replace("mode: exact", "mode: exact, store: named")
        first = system(text)
        store = first.stores["named"]
        for key, route in ((b"k" * 32, "kept"), (b"o" * 32, "other")):
            await store.put(key, CachedAnswer(b"x", 1.0, route=route))
        log = LogSink(LogConfig(), LineWriter(LogConfig()), SystemClock())
        same = system(text.replace("plain", "plainer"), first)
        assert await purge_old_epochs(same.settings, same.stores, first.settings, log, set())
        assert store.n_entries == 2
        other = system(text.replace("epoch: a", "epoch: b"), same)
        assert other.stores["named"] is store
        assert await purge_old_epochs(other.settings, other.stores, same.settings, log, set())
        assert await store.get(b"k" * 32) is None
        assert await store.get(b"o" * 32) is not None

    asyncio.run(main())


@pytest.mark.parametrize("rule", ["ttl_s: 5", "max_temperature: 1", "max_answer_bytes: 2048", "stale_if_error_s: 9"])
@pytest.mark.parametrize("store", ["", "store: named, "])
def test_reload_with_other_rules_keeps_answers(rule: str, store: str) -> None:
    """Also the calls in flight; the rules are the new ones."""
    text = TEXT.replace("mode: exact", f"mode: exact, {store}max_bytes: 2000000, max_answer_bytes: 1024")
    before = system(text)
    after = system(text.replace("max_answer_bytes: 1024", rule), before)
    was, its = cache_of(before), cache_of(after)
    assert was is not None
    assert its is not None
    assert its.config != was.config
    assert (its.store, its.refreshing) == (was.store, was.refreshing)
    assert its.store is was.store
    assert after.gateway.coalescer.calls is before.gateway.coalescer.calls
    assert after.gateway.idempotency.answers is before.gateway.idempotency.answers
    assert its.keep_s == its.config.storage_s
    assert cache_of(system(text, after)) is not None


@pytest.mark.parametrize("rule", ["", ", ttl_s: 5"])
def test_reload_with_other_prices_changes_the_savings(rule: str) -> None:
    """The answers stay."""
    def priced(usd: int, rule: str) -> str:
        return TEXT.replace("key: k,", f'key: k, prices: {{"*": {{input_per_mtok: {usd}, output_per_mtok: {usd}}}}},'
                            ).replace("epoch: a", f"epoch: a{rule}")

    before = system(priced(1, ""))
    its = cache_of(system(priced(1000, rule), before))
    was = cache_of(before)
    assert was is not None
    assert its is not None
    assert its.store is was.store
    assert its.worth_usd(Usage(input_total=10, output=10), "small") == pytest.approx(0.02)


def test_cache_identities_of_tenants_are_bounded() -> None:
    """The same tenant has the same identity again."""
    caching = cache_of(system(TEXT))
    assert caching is not None
    said = {caching.identity_of(f"t{number}", api) for number in range(MAX_IDENTITIES) for api in (Api.CHAT, Api.MESSAGES)}
    assert len(said) == 2 * MAX_IDENTITIES
    assert len(caching.identities) == MAX_IDENTITIES
    assert caching.identity_of("t0", Api.CHAT) in said
    assert caching.identity_of(None, Api.CHAT) not in said


def test_route_with_cache_off_has_no_cache() -> None:
    assert cache_of(system(TEXT.replace("mode: exact", '"mode": "off"'))) is None
    assert system(TEXT).gateway.router.routes["plain"].policy.cache is None


def test_cache_entries_and_bytes_are_in_the_metrics() -> None:
    built = system(TEXT)
    caching = cache_of(built)
    assert caching is not None
    asyncio.run(caching.store.put(b"k" * 32, CachedAnswer(b"x" * 1000, 1.0)))
    _, text = asyncio.run(built.metrics())
    lines = text.decode().splitlines()
    assert 'stayfast_cache_entries{route="kept"} 1' in lines
    assert f'stayfast_cache_bytes{{route="kept"}} {caching.store.n_bytes}' in lines
