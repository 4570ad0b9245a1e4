"""The tokens that are paid for after a client has disconnected.

The simulator records when each call ended on its side; all clocks are this machine's. A gateway that notices a disconnect
only when the upstream sends something, or never, pays for all tokens generated until then: the delay times the generation
rate. A call that ended before its client left was not closed by the disconnect, and counts as not closed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from typing import Any
from urllib.parse import urlsplit

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import (
    ClaimResult,
    Conditions,
    Extent,
    Figure,
    Sense,
    SetUpFailed,
    Verdict,
    mark_invalid,
)
from stayfast.lab.harness.load import LoopWatch
from stayfast.lab.harness.loopback import encode_chat_post
from stayfast.lab.harness.processes import Processes, ServerProcess, gateway_settings

GAP_S = 0.02  # between tokens: 50 per second
WITHIN_MS = 50.0
SETTLED_AFTER_S = 1.0  # a call that is still open then is counted with its duration so far
N_TOKENS = 500  # ten seconds of stream
VISIT_WITHIN_S = 10.0
SAME_INSTANT_S = 0.001  # tolerance between the wall clock and the loop's clock, whose values the simulator adds up
N_REMEMBERED = 1000  # requests that the simulator remembers


@dataclass(frozen=True, slots=True)
class LeavePoint:
    """When clients leave: `after_s` after the request, or after `after_chunks` chunks."""

    name: str
    provider: str
    stream: bool
    after_s: float = 0.0
    after_chunks: int = 0


LEAVE_POINTS = (
    LeavePoint("before the first token", "silent", stream=True, after_s=0.2),
    LeavePoint("in mid-stream", "talking", stream=True, after_chunks=5),
    LeavePoint("awaiting a whole answer", "silent", stream=False, after_s=0.2),
)


@dataclass(frozen=True, slots=True)
class Cancel:
    """n of an extent: clients. start_front: starts the server under test with the settings of a gateway."""

    full: Extent = Extent(50)
    quick: Extent = Extent(10)
    start_front: Callable[[Processes, Mapping[str, Any]], Awaitable[ServerProcess]] = Processes.start_gateway

    name = "cancel"
    statement = ("When a client disconnects before the first token, in mid-stream or while waiting for a whole answer, its "
            f"upstream call is closed within {WITHIN_MS:g} ms, which costs at most {WITHIN_MS / 1e3 / GAP_S:g} tokens at "
            f"{1 / GAP_S:g} tokens per second.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n_clients = conditions.choose(self.full, self.quick).n
        ttft_s = {"silent": 8.0, "talking": 0.1}
        providers = {name: {"ttft": {"median_s": median_s}, "gaps": {"median_s": GAP_S, "sigma": 0.0}}
                     for name, median_s in ttft_s.items()}
        figures: list[Figure] = []
        async with Processes() as processes:
            sim = await processes.start_simulator(providers, conditions.seed)
            settings = gateway_settings({name: f"{sim.url}/{name}/v1" for name in providers})
            settings["routes"] = {f"{name}-{n}": {"upstreams": [name]} for name in providers for n in range(n_clients)}
            front = await self.start_front(processes, settings)
            with LoopWatch() as watch:
                for point in LEAVE_POINTS:
                    conditions.report_progress(f"{n_clients} clients leave {point.name}")
                    figures += await _measure_leaving(point, sim, f"{front.url}/v1", n_clients)
        return make_finding(figures, watch.max_lag_s * 1e3)


def make_finding(figures: Sequence[Figure], lag_ms: float) -> ClaimResult:
    """lag_ms: by how much this process was late. A close that was late while this process was, too, shows nothing."""
    is_late = any(figure.unit == "ms" and figure.verdict is Verdict.FALLS_SHORT for figure in figures)
    spoiled = (f"the client's own loop stood still for {lag_ms:.0f} ms, which may explain the late closes"
               if is_late and lag_ms > WITHIN_MS / 2 else None)
    judged = [figure for each in figures
              for figure in mark_invalid((each,), spoiled if each.unit and each.verdict is Verdict.FALLS_SHORT else None)]
    return ClaimResult(tuple(judged), (f"The client's own loop was at most {lag_ms:.1f} ms late.",), spoiled)


async def _measure_leaving(point: LeavePoint, sim: ServerProcess, url: str, n_clients: int) -> Sequence[Figure]:
    await sim.get("/_sim/reset", "POST")
    left_at: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        for n in range(n_clients):
            group.create_task(_send_and_leave(point, url, f"{point.provider}-{n}", left_at))
    await asyncio.sleep(SETTLED_AFTER_S)
    now = SystemClock().wall()
    rows: list[dict[str, Any]] = (await sim.get(f"/_sim/requests?n={N_REMEMBERED}"))["requests"]
    if len(rows) == N_REMEMBERED:
        raise SetUpFailed(f"the simulator received {N_REMEMBERED} or more calls from {n_clients} clients")
    delays_s = []
    n_open = n_clients - len({row["model"] for row in rows})  # clients without any upstream call
    for row in rows:
        client_left_at = left_at.get(row["model"], now)
        ended_at = row["asked_at"] + row["seconds"] if row["ended"] is not None else now
        n_open += row["ended"] != "left" or ended_at < client_left_at - SAME_INSTANT_S
        delays_s.append(max(0.0, ended_at - client_left_at))
    return (
        Figure.count(f"clients that left {point.name}", len(left_at), float(n_clients), Sense.AT_LEAST),
        Figure.count(f"calls not closed by the hang-up after {SETTLED_AFTER_S:g} s, {point.name}", n_open),
        Figure.exact(f"longest time to the upstream's close, {point.name}", max(delays_s, default=nan) * 1e3, "ms",
                     WITHIN_MS),
        Figure.exact(f"tokens a client after it hung up, at {1 / GAP_S:g} a second, {point.name}",
                     sum(delays_s) / GAP_S / n_clients, "tokens", WITHIN_MS / 1e3 / GAP_S),
    )


async def _send_and_leave(point: LeavePoint, url: str, model: str, left_at: dict[str, float]) -> None:
    """Send a request, wait, and leave, by reset or close in turn. A client without an answer does not count as left."""
    address = urlsplit(url)
    body = json.dumps({"model": model, "stream": point.stream, "max_tokens": N_TOKENS,
                       "messages": [{"role": "user", "content": "Hello!"}]}).encode()
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(encode_chat_post(url, body))
            n_seen = 0
            async with asyncio.timeout(VISIT_WITHIN_S):
                while n_seen < point.after_chunks:
                    n_seen += (await reader.readuntil(b"\n\n")).count(b'"content"')
            await asyncio.sleep(point.after_s)
            left_at[model] = SystemClock().wall()
            if int(model.rpartition("-")[2]) % 2:
                writer.transport.abort()
        finally:
            writer.close()
