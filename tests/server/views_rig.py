"""A real gateway with simulated upstreams and traffic, behind an address with a scripted feed, snapshot and findings."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import (
    CacheRow,
    FleetRow,
    JobRow,
    MachineRow,
    Snapshot,
    Spread,
    StoreRow,
    TenantRow,
    TrafficRow,
    UpstreamRow,
)
from tests.flow.socket_rig import gateway
from tests.server.ui_rig import UiRig

HOSTILE = "<img/src=x/onerror=window.hurt=1>"
HARMLESS = "summaries"
PLANTED_SECRETS = ("planted-key-of-a-provider", "planted-header")
SETTINGS = f"""\
upstreams:
  quick: {{kind: simulated, seed: 3, ttft: {{median_s: 0.03, sigma: 0.4}}, gaps: {{median_s: 0.001}}, output: {{median: 40}},
    prices: {{"*": {{input_per_mtok: 0.5, output_per_mtok: 1.5}}}}}}
  slow: {{kind: simulated, seed: 4, ttft: {{median_s: 0.35, sigma: 0.1}}, gaps: {{median_s: 0.002}}, output: {{median: 60}},
    prices: {{"*": {{input_per_mtok: 3, output_per_mtok: 15}}}}}}
  broken: {{kind: simulated, faults: [{{kind: status, status: 503, rate: 1}}]}}
  "{HOSTILE}": {{kind: simulated, ttft: {{median_s: 0.02}}, gaps: {{median_s: 0.001}}, output: {{median: 20}}}}
  paid: {{kind: openai, base_url: "http://127.0.0.1:9/v1", key: {PLANTED_SECRETS[0]}, probe: false,
    headers: {{x-token: {PLANTED_SECRETS[1]}}}}}
routes:
  chat: [quick]
  hedged: {{upstreams: [slow, quick], pick: order, hedge: {{mode: race}}}}
  docs: {{upstreams: [quick], cache: {{mode: exact}}}}
  retried: {{upstreams: [broken, quick], pick: order}}
  failing: {{upstreams: [broken], retry: {{max_attempts: 1}}}}
  unused: [paid]
  "{HOSTILE}": ["{HOSTILE}"]
"""


def spread(p50: float, p99: float, n: int = 600) -> Spread:
    """Percentiles of one row."""
    return Spread(n, p50, (p50 + 2 * p99) / 3, p99, p99 * 1.4)


def traffic(route: str, n: int, p50: float, p99: float) -> list[TrafficRow]:
    """A route's rows in each window."""
    at_p50 = {"admit": 0.002, "cache": 0.003, "context": 0.004, "route": 0.001, "call": p50 - 0.011, "relay": 0.001}
    at_p99 = {"admit": 0.3 * p99, "cache": 0.02, "context": 0.01, "route": 0.002, "call": 0.7 * p99 - 0.034, "relay": 0.002}
    return [TrafficRow(route=route, upstream="", window_s=window_s, n=n, ttft_s=spread(p50, p99, n),
                       stages_at_p50_s=at_p50, stages_at_p99_s=at_p99, over_stages={"call": 4},
                       stages_s={stage: spread(at_p50[stage], at_p99[stage], n) for stage in at_p50})
            for window_s in (60.0, 300.0, 3600.0)] + [
        TrafficRow(route=route, upstream="quick", window_s=3600.0, n=n, n_input_tokens=n * 900, n_cached_tokens=n * 400)]


def plant_findings(name: str) -> list[Finding]:
    """Two causes, one of them with a consequence. name: of a route."""
    return [
        Finding("latency.spread", "act", FindingSite(route="chat", upstream="slow"),
                "p99 of the first token is 6.1 times p50: 2.40 s against 0.39 s.",
                "One upstream of the route answers 4 times slower than the other, and half of the requests go there.",
                (Evidence("p99 of the first token", 2.4, "s", 300.0, "/admin/snapshot"),
                 Evidence("p50 of the first token", 0.39, "s", 300.0, "/admin/snapshot"),
                 Evidence("share of requests at slow", 0.48, "ratio", 300.0, "stayfast_requests_total")),
                (SettingsChange("A second attempt after the usual p95 of 0.9 s: p99 about 1.1 s.",
                                "routes:\n  chat:\n    hedge: {mode: auto}\n", "estimated", 1.3),),
                "stayfast requests --slowest --route chat", time.time() - 2520),
        Finding("load.queue", "warn", FindingSite(route="chat"), "Requests wait 120 ms for a slot at slow.",
                "The limit of slow fell because it answers slowly.", hidden_by="latency.spread"),
        Finding("prompt.moving_prefix", "warn", FindingSite(route=name), f"The first 40 tokens of {name} change.",
                "A time stamp is part of the system prompt.",
                (Evidence("tokens that cannot be cached", 812.0, "tokens", 3600.0),),
                (SettingsChange("Move the time to the last message."),), "The share of cached tokens rises above 60 %."),
    ]


def plant_snapshot(name: str) -> Snapshot:
    """Figures for every view. name: of a tenant."""
    return Snapshot(
        time.time(), "gw-1", "0.1.0", n_workers=2,
        traffic=(*traffic("chat", 9200, 0.39, 2.4), *traffic("docs", 2100, 0.2, 0.6)),
        upstreams=(UpstreamRow(name="quick", kind="simulated"),),
        machines=tuple(MachineRow(worker, 7200.0, 0.31, 2.0, 0.0, 182_000_000, 0.0, None, spread(0.001, 0.004),
                                  spread(0.0004, 0.002), 412, 65_536) for worker in (0, 1)),
        stores=(StoreRow("near", "redis", ("cache", "fleet"), n_calls=8100, n_failed=3, call_s=spread(0.0006, 0.002),
                         n_evicted=0, memory_ratio=0.41),),
        caches=(CacheRow("docs", "semantic", 2100, 610, 320, 14, 22, 1820, 9_200_000, 0, 4.81, 840.0, "live", 0.008),),
        tenants=(TenantRow("shop", "paid", 5100, 3, 12, 8_200_000, 4.2, 6, 1, spread(0.4, 1.9), spread(800, 5200),
                           {"requests a minute": 0.22, "tokens a minute": 0.61}),
                 TenantRow(name, "", 240, n_tokens=90_000)),
        jobs=(JobRow("chat", 1200, 16, 40, 310.0, 0.0, {"completed": 4100, "failed": 3}, spread(40, 300), spread(1.2, 8.0),
                     spread(900, 1300, 9), 0.18),),
        fleet=(FleetRow("gw-1", "0.1.0", 1.0),))


@dataclass
class ViewsRig:
    """The address of the page, and the ids of requests by what happened to them."""

    url: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    last: str = HOSTILE  # the last route's name
    snapshot: Snapshot = field(default_factory=lambda: plant_snapshot(HOSTILE))
    findings: list[Finding] = field(default_factory=lambda: plant_findings(HOSTILE))
    is_absent: bool = False  # /admin/snapshot and /admin/findings answer 503

    async def send_snapshot(self, _: web.Request) -> web.Response:
        if self.is_absent:
            return web.json_response({"error": {"message": "Worker 0 does not answer."}}, status=503)
        return web.Response(body=msgspec.json.encode(self.snapshot), content_type="application/json")

    async def send_findings(self, _: web.Request) -> web.Response:
        checks = [{"id": finding.id, "title": finding.because} for finding in plant_findings(self.last)]
        body = {"at": time.time(), "n_requests": 9200, "checks": checks, "findings": self.findings}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")


JOBS = {"object": "list", "has_more": False, "queues": [], "data": [
    {"id": "job_1", "status": "running", "model": "chat", "tenant": "shop", "created_at": 1_790_000_000, "attempts": 1},
    {"id": "job_2", "status": "dead", "model": HOSTILE, "created_at": 1_790_000_000, "attempts": 3, "why": "workers died"}]}


async def send_jobs(_: web.Request) -> web.Response:
    """The gateway of these tests has no store of jobs."""
    return web.json_response(JOBS)


async def stream_answer(client: aiohttp.ClientSession, url: str, model: str, text: str) -> str:
    """One streamed request, read to its end: its id."""
    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": 60,
                            "messages": [{"role": "user", "content": text}]}
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.headers["x-request-id"]


async def send_traffic(rig: ViewsRig, client: aiohttp.ClientSession) -> None:
    """Some requests of each kind."""
    plain = await asyncio.gather(*[stream_answer(client, rig.url, "chat", f"question {n}") for n in range(12)])
    rig.ids = {"plain": plain[0], "hedged": await stream_answer(client, rig.url, "hedged", "race")}
    for name in ("docs", "retried", "failing", rig.last):
        rig.ids[name] = await stream_answer(client, rig.url, name, "a question that is asked twice")
    rig.ids["cached"] = await stream_answer(client, rig.url, "docs", "a question that is asked twice")


@asynccontextmanager
async def open_views(settings: str = SETTINGS, *, has_traffic: bool = True, is_hostile: bool = True
                     ) -> AsyncIterator[ViewsRig]:
    """The gateway, its traffic, and the address of the page. is_hostile: some names are markup."""
    feed = UiRig()
    name = HOSTILE if is_hostile else HARMLESS
    async with gateway(settings.replace(HOSTILE, name)) as (_, port), aiohttp.ClientSession(auto_decompress=False) as client:

        async def forward(request: web.Request) -> web.Response:
            address = f"http://127.0.0.1:{port}{request.raw_path}"
            async with client.request(request.method, URL(address, encoded=True), data=await request.read(),
                                      headers={"host": f"127.0.0.1:{port}"}) as answer:
                made = web.Response(body=await answer.read(), status=answer.status)
                made.headers.clear()
                for name, value in answer.headers.items():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        made.headers.add(name, value)
                return made

        rig, app = ViewsRig(last=name, snapshot=plant_snapshot(name), findings=plant_findings(name)), web.Application()
        app.router.add_get("/admin/live", feed.live)
        app.router.add_get("/admin/live/history", feed.history)
        app.router.add_get("/admin/snapshot", rig.send_snapshot)
        app.router.add_get("/admin/findings", rig.send_findings)
        app.router.add_get("/admin/jobs", send_jobs)
        app.router.add_route("*", "/{rest:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        if has_traffic:
            rig.url = f"http://127.0.0.1:{port}"
            await send_traffic(rig, client)
        [address] = runner.addresses
        rig.url = f"http://127.0.0.1:{address[1]}"
        try:
            yield rig
        finally:
            feed.cut()
            await runner.cleanup()
