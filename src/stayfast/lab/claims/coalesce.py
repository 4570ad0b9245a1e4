"""A thousand who ask the same at once are one call to the upstream, and one of them who leaves hurts no other.

The clients have a connection each and send their request in the same instant. In the second part a tenth of them hang up in
mid-answer, the one that came first among them. Calls are counted by the simulator; what the clients got must be whole, and
the same for all.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.load import simulated_gateway
from stayfast.lab.harness.processes import ServerProcess

N_TOKENS = 40
LEAVES_AFTER_CHUNKS = 3
WITHIN_S = 60.0
PROVIDER: Mapping[str, Any] = {"ttft": {"median_s": 1.5, "sigma": 0.0}, "gaps": {"median_s": 0.05, "sigma": 0.0},
                               "fills_max_tokens": True}
CACHE: Mapping[str, Any] = {"mode": "exact"}


@dataclass(frozen=True, slots=True)
class Coalesce:
    full: Extent = Extent(1000)
    quick: Extent = Extent(200)
    cache: Mapping[str, Any] = field(default_factory=lambda: CACHE)  # the route's

    name = "coalesce"
    says = "1,000 identical requests at once make one upstream call, and clients that leave in mid-answer hurt no other."

    async def run(self, conditions: Conditions) -> Finding:
        n = conditions.choose(self.full, self.quick).n
        figures: list[Figure] = []
        async with simulated_gateway({"slow": PROVIDER}, conditions.seed, cache=self.cache) as (sim, url):
            for question, n_leaving in (("all stay", 0), ("some leave", n // 10)):
                conditions.report_progress(f"{n} at once, {n_leaving} of them leave")
                figures += await _judge(sim, url, question, n, n_leaving)
        return Finding(tuple(figures))


async def _judge(sim: ServerProcess, url: str, question: str, n: int, n_leaving: int) -> list[Figure]:
    await sim.get("/_sim/reset", "POST")
    parts = urlsplit(url)
    body = json.dumps({"model": "m", "stream": True, "temperature": 0, "max_tokens": N_TOKENS,
                       "messages": [{"role": "user", "content": question}]})
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
               f"x-stayfast-keepalive: off\r\ncontent-length: {len(body)}\r\n\r\n{body}").encode()
    connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(n)]
    async with asyncio.timeout(WITHIN_S):
        answers = await asyncio.gather(*[
            _client(reader, writer, request, leaves=number < n_leaving)
            for number, (reader, writer) in enumerate(connections)])
    staying = answers[n_leaving:]
    whole = [answer for answer in staying
             if answer.endswith(b"data: [DONE]\n\n") and answer.count(b'"content":"') >= N_TOKENS]
    n_calls = len((await sim.get("/_sim/requests?n=1000"))["requests"])
    return [Figure(f"{question}: upstream calls for {n} requests", float(n_calls), "", 1.0),
            Figure(f"{question}: whole answers of those who stayed", len(whole) / len(staying) * 100, "%", 100.0,
                   Sense.AT_LEAST),
            Figure(f"{question}: different answers", float(len(set(whole))), "", 1.0)]


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, *, leaves: bool) -> bytes:
    """The events that the client got, without the gateway's last comment; nothing where it left."""
    try:
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
        events: list[bytes] = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            events.append((await reader.readexactly(size + 2))[:-2])
            if leaves and len(events) == LEAVES_AFTER_CHUNKS:
                return b""
        return b"".join([event for event in events if not event.startswith(b":")])
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return b""
    finally:
        writer.transport.abort()
