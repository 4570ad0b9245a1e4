"""The tokens that are paid for after the client has hung up.

The simulator notes when each call ended on its side; all clocks are this machine's. A gateway that notices only when the
upstream speaks, or never, pays for all the tokens that come until then; what is paid here is the delay times the pace. A
call that ended before its client left is not one that was closed by the hang-up, and counts as not closed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense, SetUpFailed, over
from stayfast.lab.harness.processes import Processes, ServerProcess, gateway_settings

GAP_S = 0.02  # between tokens: 50 a second
WITHIN_MS = 50.0
SETTLED_AFTER_S = 1.0  # a call that has not ended by then is counted with what it took so far
N_TOKENS = 500  # ten seconds of stream
VISIT_WITHIN_S = 10.0
SAME_INSTANT_S = 0.001  # of the wall clock and the loop's, which the simulator adds up
N_REMEMBERED = 1000  # requests that the simulator remembers


@dataclass(frozen=True, slots=True)
class LeavePoint:
    """When clients leave: so long after asking, or after so many chunks."""

    name: str
    provider: str
    stream: bool
    after_s: float = 0.0
    after_chunks: int = 0


STATES = (
    LeavePoint("before the first token", "silent", stream=True, after_s=0.2),
    LeavePoint("in mid-stream", "talking", stream=True, after_chunks=5),
    LeavePoint("awaiting a whole answer", "silent", stream=False, after_s=0.2),
)


@dataclass(frozen=True, slots=True)
class Cancel:
    """n of an extent: clients. `front` starts what stands in front of the simulator, with the settings of a gateway."""

    full: Extent = Extent(50)
    quick: Extent = Extent(10)
    front: Callable[[Processes, Mapping[str, Any]], Awaitable[ServerProcess]] = Processes.gateway

    name = "cancel"
    says = (f"When a client hangs up before the first token, in mid-stream or while it awaits a whole answer, the upstream "
            f"call is closed within {WITHIN_MS:g} ms.")

    async def run(self, conditions: Conditions) -> Finding:
        n_clients = conditions.choose(self.full, self.quick).n
        pace = {"median_s": GAP_S, "sigma": 0.0}
        starts_s = {"silent": 8.0, "talking": 0.1}
        providers = {name: {"ttft": {"median_s": start_s}, "gaps": pace} for name, start_s in starts_s.items()}
        figures: list[Figure] = []
        async with Processes() as processes:
            sim = await processes.simulator(providers, conditions.seed)
            settings = gateway_settings({name: f"{sim.url}/{name}/v1" for name in providers})
            settings["routes"] = {f"{name}-{n}": {"upstreams": [name]} for name in providers for n in range(n_clients)}
            front = await self.front(processes, settings)
            for state in STATES:
                conditions.report_progress(f"{n_clients} clients leave {state.name}")
                figures += await _judge(state, sim, front.url, n_clients)
        return Finding(tuple(figures))


async def _judge(state: LeavePoint, sim: ServerProcess, url: str, n_clients: int) -> Sequence[Figure]:
    await sim.get("/_sim/reset", "POST")
    left_at: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        for n in range(n_clients):
            group.create_task(_visit(state, url, f"{state.provider}-{n}", left_at))
    await asyncio.sleep(SETTLED_AFTER_S)
    now = SystemClock().wall()
    rows: list[dict[str, Any]] = (await sim.get(f"/_sim/requests?n={N_REMEMBERED}"))["requests"]
    if len(rows) == N_REMEMBERED:
        raise SetUpFailed(f"the simulator was asked {N_REMEMBERED} times or more by {n_clients} clients")
    delays_s = []
    n_open = n_clients - len({row["model"] for row in rows})  # clients for whom there was no call at all
    for row in rows:
        gone_at = left_at.get(row["model"], now)
        ended_at = row["asked_at"] + row["seconds"] if row["ended"] is not None else now
        n_open += row["ended"] != "left" or ended_at < gone_at - SAME_INSTANT_S
        delays_s.append(max(0.0, ended_at - gone_at))
    _, quickest_s, longest_s = over(delays_s)
    return (
        Figure(f"clients that left {state.name}", float(len(left_at)), "", float(n_clients), Sense.AT_LEAST),
        Figure(f"calls not closed by the hang-up after {SETTLED_AFTER_S:g} s, {state.name}", float(n_open), "", 0.0),
        Figure(f"longest time to the upstream's close, {state.name}", longest_s * 1e3, "ms", WITHIN_MS,
               low=quickest_s * 1e3, high=longest_s * 1e3),
        Figure(f"tokens a client after it hung up, at {1 / GAP_S:g} a second, {state.name}",
               sum(delays_s) / GAP_S / n_clients, "", WITHIN_MS / 1e3 / GAP_S),
    )


async def _visit(state: LeavePoint, url: str, model: str, left_at: dict[str, float]) -> None:
    """Ask, wait, leave: every other client by a reset, the others by closing. One that gets no answer has not left."""
    parts = urlsplit(url)
    body = json.dumps({"model": model, "stream": state.stream, "max_tokens": N_TOKENS,
                       "messages": [{"role": "user", "content": "Hello!"}]}).encode()
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                         b"content-length: %d\r\n\r\n%b" % (len(body), body))
            n_seen = 0
            async with asyncio.timeout(VISIT_WITHIN_S):
                while n_seen < state.after_chunks:
                    n_seen += (await reader.readuntil(b"\n\n")).count(b'"content"')
            await asyncio.sleep(state.after_s)
            left_at[model] = SystemClock().wall()
            if int(model.rpartition("-")[2]) % 2:
                writer.transport.abort()
        finally:
            writer.close()
