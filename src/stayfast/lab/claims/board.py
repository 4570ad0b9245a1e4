"""The page of the gateway: what its viewers cost, how large a second of figures is, and when the page is painted.

A gateway relays whole answers of a simulator on N_ROUTES routes through as many upstreams; then one with MANY of both, more
than a frame has rows for. The load does not change. In turn, in the order ABBA, nobody watches, and N_VIEWERS watch
`/admin/live`.
CPU is the kernel's account of the gateway's process; the cost of the viewers is the difference of the two phases of a round.
The frames that the viewers received are measured in bytes, and each second must have one.

The page is loaded from the same gateway: all files that the first figures need, compressed, by one connection; and where
there is a browser, in it, without a cache, until its first contentful paint: the header and empty tiles. Other load of the
machine can only add to a time, so the shortest load is judged; the median is printed too. A page of one line of text, in
turn with it, shows what the browser itself needs: if even its shortest load takes longer than BUSY_S, the machine is busy,
and a late page shows nothing.

When wrong: the reader's own machine draws the page, which is not counted. Load and simulator share the machine's caches.
"""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.browser import find_browser, open_browser
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, SetUpFailed, mark_invalid, ratio
from stayfast.lab.harness.load import LoadSpec, n_failed, run_load
from stayfast.lab.harness.loopback import split_address
from stayfast.lab.harness.processes import ONE_CORE, Processes, ServerProcess
from stayfast.lab.load.arrivals import ConstantArrivals
from stayfast.lab.load.result import Result

N_VIEWERS: Final = 10
N_ROUTES: Final = 6
MANY: Final = 30
RATE_RPS: Final = 20.0  # of all routes
CPU_GOAL: Final = 0.005  # of a core
MAX_BYTES: Final = 20_000
PAINT_GOAL_S: Final = 0.1
BUSY_S: Final = 0.05
SETTLE_S: Final = 1.2  # for the first frame after the viewers have come, or the last after they have left
WARMUP_S: Final = 3.0
LIVE: Final = "/admin/live"
PROVIDER: Final[Mapping[str, Any]] = {"preset": "gpt-4o-like"}
_NAMED = re.compile(rb'(?:src|href)="(ui/[^"]+)"')
Start = Callable[[Processes, Mapping[str, Any]], Awaitable[ServerProcess]]


async def start_gateway(processes: Processes, settings: Mapping[str, Any]) -> ServerProcess:
    return await processes.start_gateway(settings)


@dataclass(frozen=True, slots=True)
class BoardClaim:
    """real_s of an extent: of each phase; n: loads of the page in a browser."""

    full: Extent = Extent(n=30, real_s=5.0, n_rounds=12)
    quick: Extent = Extent(n=10, real_s=2.5, n_rounds=6)
    sizes: tuple[int, ...] = (N_ROUTES, MANY)  # routes
    start: Start = field(default=start_gateway)

    name = "board"
    statement = (f"{N_VIEWERS} viewers of the page add at most {CPU_GOAL * 100:g} % of a core to a gateway with {N_ROUTES} "
                 f"routes and upstreams, and to one with {MANY}, under {RATE_RPS:g} requests a second. A second of figures "
                 f"has at most {MAX_BYTES // 1000} kB, and each viewer gets every second. From loopback, the first "
                 f"contentful paint of the page in Chromium takes at most {PAINT_GOAL_S * 1e3:g} ms (the shortest "
                 "of several loads).")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        figures: list[Figure] = []
        for n_routes in self.sizes:
            async with Processes() as processes:
                sim = await processes.start_simulator({"p": PROVIDER}, conditions.seed)
                gateway = await self.start(processes, board_settings(f"{sim.url}/p/v1", n_routes))
                if not processes.reserve_core(gateway):
                    conditions.report_progress(ONE_CORE)
                meter, results = await self._measure(gateway, n_routes, extent, conditions)
                figures += meter.figures()
                figures.append(Figure.count(f"failed requests, {n_routes} routes", sum(map(n_failed, results))))
        async with Processes() as processes:  # a browser may use every core
            gateway = await self.start(processes, board_settings("http://127.0.0.1:9/v1", N_ROUTES))
            figures += await measure_page(gateway, extent.n, conditions.report_progress)
        note = ("CPU of the viewers: the difference of two phases of the same round, one with them and one without. A "
                "frame is made once a second while anybody watches, and not otherwise.")
        return ClaimResult(tuple(figures), (note,))

    async def _measure(self, gateway: ServerProcess, n_routes: int, extent: Extent,
                       conditions: Conditions) -> tuple["Meter", list[Result]]:
        meter = Meter(gateway, n_routes)
        seconds = WARMUP_S + extent.n_rounds * 2 * (extent.real_s + SETTLE_S) + SETTLE_S
        async with asyncio.TaskGroup() as group:
            load = group.create_task(load_routes(gateway, n_routes, seconds, conditions.seed))
            await asyncio.sleep(WARMUP_S)
            for number in range(extent.n_rounds):
                conditions.report_progress(f"{n_routes} routes, round {number + 1} of {extent.n_rounds}")
                await meter.run_round(extent.real_s, is_watched_first=number % 2 == 1)
        return meter, load.result()


def board_settings(base_url: str, n_routes: int) -> dict[str, Any]:
    """A gateway with so many routes, each with an upstream of its own and the next one."""
    names = [f"upstream-{number}" for number in range(n_routes)]
    return {
        "server": {"port": 0}, "log": {"requests": False},
        "upstreams": {name: {"kind": "openai", "base_url": base_url, "key": "none", "probe": False, "apis": ["chat"]}
                      for name in names},
        "routes": {f"route-{number}": {"upstreams": [name, names[(number + 1) % n_routes]], "hedge": {"mode": "off"}}
                   for number, name in enumerate(names)},
    }


async def load_routes(gateway: ServerProcess, n_routes: int, seconds: float, seed: int) -> list[Result]:
    """Whole answers on each route, at equal distances. Returns the result of each."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_load(
            LoadSpec(seconds, stream=False, model=f"route-{route}", n_output=4,
                     arrivals=ConstantArrivals(RATE_RPS / n_routes)),
            f"{gateway.url}/v1", seed + route)) for route in range(n_routes)]
    return [task.result() for task in tasks]


class Viewer:
    """One open page: reads `/admin/live`, and counts frames and their bytes."""

    def __init__(self) -> None:
        self.n_bytes: list[int] = []  # of each frame's JSON

    async def watch(self, url: str) -> None:
        """Read until cancelled. Raises SetUpFailed."""
        host, port = split_address(url)
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        try:
            writer.write(f"GET {LIVE} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise SetUpFailed(f"GET {LIVE} answered {status.decode('latin-1').strip()}")
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    self.n_bytes.append(len(line.removeprefix(b"data:").strip()))
        finally:
            writer.close()


class Meter:
    """Rounds of two phases on one gateway: nobody watches, and N_VIEWERS watch."""

    def __init__(self, gateway: ServerProcess, n_routes: int) -> None:
        self._gateway = gateway
        self._n_routes = n_routes
        self._alone: list[float] = []  # cores
        self._watched: list[float] = []
        self._n_bytes: list[int] = []
        self._n_missed = 0
        self._n_extra = 0

    async def run_round(self, seconds: float, *, is_watched_first: bool) -> None:
        for is_watched in (is_watched_first, not is_watched_first):
            (self._watched if is_watched else self._alone).append(
                await self._watch(seconds) if is_watched else await self._measure(seconds))

    async def _measure(self, seconds: float) -> float:
        """CPU of the gateway, in cores."""
        clock = SystemClock()
        await asyncio.sleep(SETTLE_S)
        began_at, before_s = clock.now(), self._gateway.cpu_s()
        await asyncio.sleep(seconds)
        return ratio(self._gateway.cpu_s() - before_s, clock.now() - began_at)

    async def _watch(self, seconds: float) -> float:
        viewers = [Viewer() for _ in range(N_VIEWERS)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(viewer.watch(self._gateway.url)) for viewer in viewers]
            cores = await self._measure(seconds)
            for task in tasks:
                task.cancel()
        for viewer in viewers:
            self._n_bytes += viewer.n_bytes
            self._n_missed += max(0, int(seconds) - len(viewer.n_bytes))
            self._n_extra += max(0, len(viewer.n_bytes) - int(seconds + SETTLE_S) - 2)
        return cores

    def figures(self) -> list[Figure]:
        routes = f"{self._n_routes} routes and upstreams"
        added = [(with_them - without) * 100 for with_them, without in zip(self._watched, self._alone, strict=True)]
        over = [ratio(with_them, without) for with_them, without in zip(self._watched, self._alone, strict=True)]
        return [
            Figure.of_rounds(f"CPU added by {N_VIEWERS} viewers, {routes}", added, "% of a core", CPU_GOAL * 100),
            Figure.of_rounds(f"CPU of the gateway without viewers, {routes}", [cores * 100 for cores in self._alone],
                             "% of a core"),
            Figure.of_rounds(f"CPU with viewers over CPU without, {routes}", over, "x"),
            Figure.exact(f"largest frame, {routes}", float(max(self._n_bytes, default=0)) or float("nan"), "B", MAX_BYTES),
            Figure.count(f"frames that a viewer missed, {routes}", self._n_missed),
            Figure.count(f"frames beyond one a second, {routes}", self._n_extra),
        ]


async def measure_page(gateway: ServerProcess, n_loads: int, report: Callable[[str], None]) -> list[Figure]:
    """Bytes and time of all files of the first figures, and the first paint if there is a browser."""
    n_files, n_bytes, seconds = min([await asyncio.to_thread(load_files, gateway) for _ in range(n_loads)],
                                    key=lambda load: load[2])  # other load on the machine can only add to it
    figures = [Figure.exact(f"bytes of the page and its {n_files - 1} files, compressed", float(n_bytes), "B"),
               Figure.exact(f"shortest time to the last byte of them, by one connection, of {n_loads}", seconds * 1e3, "ms",
                            PAINT_GOAL_S * 1e3)]
    path = find_browser()
    if path is None:
        return figures
    floor_s, paint_s = [], []
    report("first paint in a browser")
    async with open_browser(path) as browser:
        for _ in range(n_loads + 1):  # the first is a warm-up
            floor_s.append(await browser.first_paint_s(f"{gateway.url}/livez"))
            paint_s.append(await browser.first_paint_s(f"{gateway.url}/ui"))
    return [*figures, *paint_figures(floor_s[1:], paint_s[1:])]


def paint_figures(floor_s: list[float], paint_s: list[float]) -> list[Figure]:
    """The time of the page, of a page of one line, and their difference. Where that is late, a late page proves nothing."""
    paint = Figure.exact(f"shortest first paint of the page, of {len(paint_s)}", min(paint_s) * 1e3, "ms",
                         PAINT_GOAL_S * 1e3)
    busy = "the machine is busy" if min(floor_s) > BUSY_S and not paint.holds else None
    over = [(page - line) * 1e3 for page, line in zip(paint_s, floor_s, strict=True)]
    return [
        *mark_invalid((paint,), busy),
        Figure.exact(f"shortest first paint of a page of one line, of {len(floor_s)}", min(floor_s) * 1e3, "ms"),
        Figure.of_rounds("first paint of the page, median", [each * 1e3 for each in paint_s], "ms"),
        Figure.of_rounds("first paint of the page after that of one line, median", over, "ms"),
    ]


def load_files(gateway: ServerProcess) -> tuple[int, int, float]:
    """Number of files, their bytes as sent, seconds. Raises SetUpFailed."""
    clock, n_bytes = SystemClock(), 0
    connection = gateway.connect()
    try:
        began_at = clock.now()
        names, seen = ["ui"], 0
        while seen < len(names):
            connection.request("GET", f"/{names[seen]}", headers={"accept-encoding": "gzip"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise SetUpFailed(f"GET /{names[seen]} answered {answer.status}")
            n_bytes += len(body)
            if not seen:
                page = gzip.decompress(body) if answer.headers["content-encoding"] == "gzip" else body
                names += dict.fromkeys(name.decode() for name in _NAMED.findall(page))
            seen += 1
        return len(names), n_bytes, clock.now() - began_at
    finally:
        connection.close()
