"""What probes read of settings and of a running system."""

import asyncio
from collections.abc import Mapping
from random import Random

from stayfast.compose.engine_metrics import make_scrapers
from stayfast.compose.probes import store_sites, tenants_now
from stayfast.compose.system import Observers, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.snapshot.probes import ProbePart
from stayfast.observe.snapshot.store_probes import ServerMemory
from stayfast.observe.snapshot.tenant_traffic import TenantNow
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.testing import SimLoop, run
from tests.flow.rig import chat, read

TEXT = """
upstreams:
  near: {kind: openai, base_url: "http://near/v1", engine_metrics: auto}
  played: {kind: simulated}
routes:
  m: {upstreams: [played]}
stores:
  hot: {kind: redis, url: "redis://127.0.0.1:9/0"}
  warm: {kind: memory}
fleet: {url: "redis://127.0.0.1:9/0"}
server: {keys: {acme: "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}
tenants:
  acme: {tier: premium, quota: {requests_per_minute: 100}}
"""


def settings_of(text: str = TEXT) -> Settings:
    return load_settings(SettingsText("test", text), {}, kinds=KINDS)


def test_store_sites_all_stores_have_their_purpose() -> None:
    sites = store_sites(settings_of())
    assert {name: (site.kind, site.purposes, site.read_memory is not None) for name, site in sites.items()} == {
        "hot": ("redis", ("cache",), True), "warm": ("memory", ("cache",), False), "fleet": ("redis", ("fleet",), True),
        "jobs": ("sqlite", ("jobs",), False)}


def test_store_sites_dead_server_has_no_memory() -> None:
    async def main() -> ServerMemory | None:
        reader = store_sites(settings_of())["hot"].read_memory
        assert reader is not None
        return await reader()

    assert asyncio.run(main()) is None


def test_make_scrapers_only_upstreams_with_the_setting_are_scraped() -> None:
    async def main(loop: SimLoop) -> list[str]:
        settings = settings_of()
        return list(make_scrapers(settings, {}, Observers(settings, loop).aggregate.signals, count_queued=lambda _: 0,
                                  clock=loop, rng=Random(1)))

    assert run(main) == ["near"]


def test_tenants_now_has_what_admission_has() -> None:
    async def main(loop: SimLoop) -> tuple[Mapping[str, TenantNow], Mapping[str, TenantNow], ProbePart]:
        settings = settings_of(TEXT.replace('fleet: {url: "redis://127.0.0.1:9/0"}\n', ""))
        observers = Observers(settings, loop)
        before = tenants_now(observers.current, loop)
        system = build(settings, observers, {}, loop, Random(1))
        reply = await system.gateway.serve(chat(), Arrival("r", loop.now(), "acme"))
        during = dict(tenants_now(observers.current, loop))
        await read(reply)
        reply.close()
        observers.batch.flush()
        return before, during, observers.probes.collect()

    before, during, part = run(main)
    assert before == {}
    now = during["acme"]
    assert (now.tier, now.waiting) == ("premium", 0)
    assert 0.9 < now.left["requests_per_minute"] < 1
    assert part.tenants.traffic["acme"].counts["n"] == 1
    assert part.upstreams["played"].tally.counts["n_streams"] >= 0
