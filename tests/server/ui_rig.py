"""A gateway with a scripted feed of frames: what the page is tested against, and what its views are written against.

    .venv/bin/python -m tests.server.ui_rig --port 8099

serves the page from the disk (reload to see a change) with invented figures, at http://127.0.0.1:8099/ui.
"""

import argparse
import asyncio
import math
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import aiohttp
import msgspec
from aiohttp import web

from stayfast.core.snapshot import (
    HEAT_BOUNDS_S,
    LiveEngine,
    LiveFinding,
    LiveFrame,
    LiveRoute,
    LiveUpstream,
    Snapshot,
    Spread,
    TrafficRow,
    UpstreamRow,
)
from stayfast.server.config import ServerConfig
from stayfast.server.ui.app import SAFETY
from stayfast.server.ui.assets import FOLDER, load_asset
from tests.server.fakes import FakeBackend, serving

EVERY_S = 1.0
LIVE, HISTORY, SNAPSHOT = "/admin/live", "/admin/live/history", "/admin/snapshot"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding"}


def heat_of(values_s: list[float]) -> tuple[tuple[int, int], ...]:
    """The rows of HEAT_BOUNDS_S that these values fall into."""
    rows: dict[int, int] = {}
    for value_s in values_s:
        row = next((at for at, bound in enumerate(HEAT_BOUNDS_S) if value_s <= bound), len(HEAT_BOUNDS_S))
        rows[row] = rows.get(row, 0) + 1
    return tuple(sorted(rows.items()))


def spread_of(values_s: list[float]) -> Spread:
    ordered = sorted(values_s)
    if not ordered:
        return Spread()
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95, 0.99)]
    return Spread(len(ordered), at[0], at[1], at[2], ordered[-1])


class InventedTraffic:
    """Frames of three routes and three upstreams, one of which gets slow every two minutes."""

    ROUTES: tuple[tuple[str, float, float, float | None], ...] = (
        ("chat", 12.0, 0.35, 1.0), ("search", 4.0, 0.12, 0.5), ("batch", 0.4, 1.8, None))
    UPSTREAMS = ("openai", "anthropic", "local-vllm")

    def __init__(self, seed: int = 1) -> None:
        self._rng = Random(seed)
        self.n_frames = 0
        self._minute: dict[str, deque[float]] = {name: deque(maxlen=int(rate * 60) + 1) for name, rate, *_ in self.ROUTES}

    def next(self, at: float, slot_s: float = 1.0) -> LiveFrame:
        self.n_frames += 1
        slow = 3.0 if (at / 60) % 4 > 3 else 1.0
        routes = tuple(self._route(one, slow, slot_s) for one in self.ROUTES)
        return LiveFrame(
            at=at, n=self.n_frames, gateway="gw-1", stayfast="0.1.0", n_workers=2, cpu_ratio=0.31,
            uptime_s=7260.0 + self.n_frames, loop_lag_p99_s=0.004, rss_bytes=182_000_000, jobs_queued=12,
            jobs_running=2, routes=routes,
            upstreams=tuple(self._upstream(name, number, slow) for number, name in enumerate(self.UPSTREAMS)),
            findings=self._findings(at, slow))

    def _route(self, one: tuple[str, float, float, float | None], slow: float, slot_s: float) -> LiveRoute:
        (name, rate, middle_s, promise_s), rng = one, self._rng
        n = max(0, round(rng.gauss(rate * slot_s, math.sqrt(rate * slot_s))))
        values_s = [middle_s * slow * math.exp(rng.gauss(0, 0.5)) * (8 if rng.random() < 0.02 else 1) for _ in range(n)]
        self._minute[name].extend(values_s)
        minute = list(self._minute[name])
        return LiveRoute(
            route=name, n=n, rps=rate,
            failed_ratio=0.004 * slow, late_ratio=0.02 * slow, hedged_ratio=0.03, cached_ratio=0.21,
            ttft_s=spread_of(minute), e2e_s=spread_of([value_s * 4 for value_s in minute]), output_tokens_per_s=rate * 180,
            usd_per_h=rate * 0.6, promise_s=promise_s, promise_share=0.99 if promise_s is not None else None,
            heat=heat_of(values_s), n_heat_failed=1 if slow > 1 and rng.random() < 0.1 else 0)

    def _upstream(self, name: str, number: int, slow: float) -> LiveUpstream:
        is_sick = number == 0 and slow > 1
        return LiveUpstream(
            name=name, rps=8.0 - number * 3, in_flight=9 - number, waiting=2 if is_sick else 0, limit=32.0 - number * 8,
            limit_why="gradient: first tokens are 2.1 times the slowest unloaded" if is_sick else "grows by use",
            breaker="half_open" if is_sick else "closed", why="5 of 20 failed in 10 s" if is_sick else "",
            failed_ratio=0.08 if is_sick else 0.0, ttft_s=Spread(300, 0.35 * slow, 0.9 * slow, 1.6 * slow, 3.0 * slow),
            quota_left=0.62 - number * 0.2, stalls_per_min=0.3 * number,
            engine=LiveEngine(6.0, 16.0, 0.83, 0.41, 1240.0, 9300.0, 2.0) if name == "local-vllm" else None)

    def _findings(self, at: float, slow: float) -> tuple[LiveFinding, ...]:
        low = LiveFinding("prompt.moving_prefix", "warn", "route search",
                          "The first 40 tokens of the system prompt change in 98 % of the requests.", at - 3600)
        if slow == 1.0:
            return (low,)
        return (LiveFinding("latency.spread", "act", "route chat, upstream openai",
                            "p99 of the first token is 6.1 times p50 (2.4 s against 0.39 s).", at - 42), low)


def invent_snapshot(frame: LiveFrame) -> Snapshot:
    """A whole snapshot that agrees with a frame."""
    rows = [TrafficRow(route=route.route, upstream="", window_s=60.0, n=round(route.rps * 60), ttft_s=route.ttft_s,
                       e2e_s=route.e2e_s) for route in frame.routes]
    return Snapshot(at=frame.at, gateway=frame.gateway, stayfast=frame.stayfast, n_workers=2, traffic=tuple(rows),
                    upstreams=tuple(UpstreamRow(name=one.name, kind="openai", limit=one.limit) for one in frame.upstreams))


@dataclass
class UiRig:
    """The address of the page, and what a test may do to its feed."""

    url: str = ""
    is_silent: bool = False  # the stream stays open without frames
    is_empty: bool = False  # a gateway without traffic
    last_ids: list[str] = field(default_factory=list)  # `last-event-id` of each stream
    n_streams: int = 0  # open now
    streams: set[asyncio.Task[object]] = field(default_factory=set)
    traffic: InventedTraffic = field(default_factory=InventedTraffic)
    latest: LiveFrame | None = None

    def cut(self) -> None:
        """End all streams."""
        for task in self.streams:
            task.cancel()

    def frame(self, at: float, slot_s: float = 1.0) -> LiveFrame:
        made = self.traffic.next(at, slot_s)
        if self.is_empty:
            made = LiveFrame(at=made.at, n=made.n, gateway=made.gateway, stayfast=made.stayfast, uptime_s=3.0)
        self.latest = made
        return made

    async def live(self, request: web.Request) -> web.StreamResponse:
        self.last_ids.append(request.headers.get("last-event-id", ""))
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        with suppress(ConnectionResetError):
            await answer.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self.streams.add(task)
        self.n_streams += 1
        try:
            while not request.transport.is_closing() if request.transport is not None else False:
                if not self.is_silent:
                    frame = self.frame(time.time())
                    await answer.write(b"id: %d\nevent: frame\ndata: %b\n\n" % (frame.n, msgspec.json.encode(frame)))
                await asyncio.sleep(EVERY_S)
        except ConnectionResetError:
            pass  # the page has gone
        finally:
            self.n_streams -= 1
            self.streams.discard(task)
        return answer

    async def history(self, request: web.Request) -> web.Response:
        seconds, now = int(request.query.get("seconds", "900")), time.time()
        frames = [self.frame(now - back, 5.0) for back in range(seconds, 0, -5)] if not self.is_empty else []
        return web.Response(body=msgspec.json.encode({"frames": frames}), content_type="application/json")

    async def snapshot(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(invent_snapshot(self.latest or self.frame(time.time()))),
                            content_type="application/json")


async def serve_from_disk(request: web.Request) -> web.Response:
    """A file of the page as it is now."""
    name = request.path.removeprefix("/ui").strip("/") or "index.html"
    if not (FOLDER / name).is_file():
        raise web.HTTPNotFound
    asset = load_asset(FOLDER, name)
    return web.Response(body=asset.body, headers={"content-type": asset.media, "cache-control": "no-store",
                                                  **{key.decode(): value.decode() for key, value in SAFETY}})


@asynccontextmanager
async def open_rig(config: ServerConfig | None = None, *, port: int = 0, is_from_disk: bool = False) -> AsyncIterator[UiRig]:
    """A gateway with a scripted backend, and before it the scripted feed, on one address."""
    async with serving(FakeBackend(config or ServerConfig(port=0))) as running, aiohttp.ClientSession(
            auto_decompress=False) as client:

        async def forward(request: web.Request) -> web.Response:
            if is_from_disk and request.path.startswith("/ui") and request.path not in (
                    "/ui/session", "/ui/login", "/ui/logout"):
                return await serve_from_disk(request)
            async with client.request(request.method, f"http://127.0.0.1:{running.port}{request.path_qs}",
                                      headers=request.headers, data=await request.read(), allow_redirects=False) as answer:
                headers = [(name, value) for name, value in answer.headers.items()
                           if name.lower() not in _HOP - {"content-encoding"}]
                body = await answer.read()
            made = web.Response(body=body, status=answer.status)
            made.headers.clear()
            for name, value in headers:
                made.headers.add(name, value)
            return made

        async def demand_session(request: web.Request) -> bool:
            async with client.get(f"http://127.0.0.1:{running.port}/admin/requests", headers=request.headers) as answer:
                return answer.status == 200

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith(("/admin/live", SNAPSHOT)) and not await demand_session(request):
                return web.json_response({"error": {"message": "No API key provided."}}, status=401)
            return await handler(request)

        rig = UiRig()
        app = web.Application(middlewares=[guard])
        app.router.add_get(LIVE, rig.live)
        app.router.add_get(HISTORY, rig.history)
        app.router.add_get(SNAPSHOT, rig.snapshot)
        app.router.add_route("*", "/{rest:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        [address] = runner.addresses
        rig.url = f"http://127.0.0.1:{address[1]}"
        try:
            yield rig
        finally:
            rig.cut()
            await runner.cleanup()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8099)
    async with open_rig(port=parser.parse_args().port, is_from_disk=True) as rig:
        sys.stdout.write(f"{rig.url}/ui\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
