"""Service tiers at a simulated provider that may serve another one: what is sent, learned, billed and counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.compose.tiers import tier_rows
from stayfast.core.clock import SystemClock
from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.lab.simulated.vendors.compatible_server import KEY, CompatibleServer
from stayfast.observe.metrics.definitions import TIER_ANSWERS, TIER_REQUESTS
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import SettingsText, load_settings
from stayfast.testing import RecordingSink
from stayfast.wire.request_body import decode
from tests.flow.rig import read

pytestmark = pytest.mark.sockets
PRICES = "{big: {input_per_mtok: 1000, output_per_mtok: 0, tier_factors: {flex: 0.5, fast: 2, ultrafast: 6}}}"


class Vendor:
    """A gateway with one route, in front of the provider."""

    def __init__(self, system: System, server: CompatibleServer, sink: RecordingSink) -> None:
        self.system, self.server, self.sink = system, server, sink

    async def answer(self, **fields: Any) -> RequestDone:
        body = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], **fields}
        request = decode(Api.CHAT, msgspec.json.encode(body))
        await read(await self.system.gateway.serve(request, Arrival("r", SystemClock().now())))
        return self.sink.facts_of(RequestDone)[-1]

    @property
    def sent(self) -> dict[str, Any]:
        return dict(self.server.received[-1].body)


@asynccontextmanager
async def vendor(tier: str, service_tier: str, more: str = "") -> AsyncIterator[Vendor]:
    server, sink, clock = CompatibleServer(), RecordingSink(), SystemClock()
    port = await server.listen()
    address = f"http://127.0.0.1:{port}/tiered"
    entry = f"{{name: {tier}, upstreams: [v], model: big, service_tier: {service_tier}}}"
    text = (f"upstreams: {{v: {{kind: openai, base_url: '{address}', key: {KEY}, prices: {PRICES}}}}}\n"
            f"routes: {{m: {{tiers: [{entry}]{more}}}}}\n")
    settings = load_settings(SettingsText("f.yaml", text), {})
    system = build(settings, Observers(settings, clock, sink=sink), {}, clock, Random(1))
    try:
        yield Vendor(system, server, sink)
    finally:
        for member in system.registry:
            member.upstream.close()
        await server.close()


@pytest.mark.parametrize(("service_tier", "sent", "served", "factor"), [
    ("flex", "flex", "flex", 0.5), ("standard", "default", "standard", 1), ("fast", "priority", "fast", 2),
    ("ultrafast", "ultrafast", "fast", 2),  # the provider served and bills another one
])
def test_service_tier_is_sent_in_the_words_of_the_provider_and_billed_as_served(service_tier: str, sent: str, served: str,
                                                                                factor: float) -> None:
    async def main() -> None:
        async with vendor("only", service_tier) as gateway:
            done = await gateway.answer()
            assert gateway.sent["service_tier"] == sent
            attempt = done.attempts[0]
            assert attempt.upstream == f"v:{service_tier}"
            assert attempt.usage is not None
            assert attempt.cost_usd == pytest.approx(factor * attempt.usage.input_total * 1000 / 1e6)
            rows = tier_rows(gateway.system.gateway.router.routes)
            assert rows[TIER_ANSWERS.name] == [(("m", "only", served), 1.0)]
            assert rows[TIER_REQUESTS.name] == [(("m", "only", "start"), 1.0)]
    asyncio.run(main())


def test_service_tier_of_the_client_wins_unless_the_settings_replace_it() -> None:
    async def main() -> None:
        async with vendor("only", "fast") as gateway:
            await gateway.answer(service_tier="flex")
            assert gateway.sent["service_tier"] == "flex"
        async with vendor("only", "fast", ", tier: {replace_service_tier: true}") as gateway:
            await gateway.answer(service_tier="flex")
            assert gateway.sent["service_tier"] == "priority"
    asyncio.run(main())


def test_start_within_is_not_forwarded() -> None:
    async def main() -> None:
        async with vendor("only", "flex") as gateway:
            await gateway.answer(start_within=30)
            assert "start_within" not in gateway.sent
            assert gateway.sent["service_tier"] == "flex"
    asyncio.run(main())


def test_speed_of_another_tier_that_was_served_is_learned_there() -> None:
    async def main() -> None:
        async with vendor("only", "ultrafast") as gateway:
            for _ in range(3):
                await gateway.answer()
            ladder = gateway.system.gateway.router.routes["m"].ladder
            assert ladder is not None
            now = SystemClock().now()
            assert ladder.speeds.speed_of(0, "ultrafast").predict(100, None, now, 0.9) is None
            assert ladder.speeds.speed_of(0, "fast").predict(100, None, now, 0.9) is not None
            assert ladder.speeds.predict(ladder.tiers[0], 100, None, now, 0.9) is not None
    asyncio.run(main())


def test_reload_with_the_same_tiers_keeps_what_was_learned() -> None:
    async def main() -> None:
        async with vendor("only", "fast") as gateway:
            await gateway.answer()
            clock, before = SystemClock(), gateway.system
            after = build(before.settings, Observers(before.settings, clock), {}, clock, Random(1), old=before)
            old, new = before.gateway.router.routes["m"].ladder, after.gateway.router.routes["m"].ladder
            assert old is not None
            assert new is not None
            assert new.speeds is old.speeds
            assert after.registry["v:fast"] is before.registry["v:fast"]
    asyncio.run(main())
