"""Identical concurrent requests make one upstream call, and a client that leaves does not affect the others.

Each client has its own connection, and all send their request at the same instant. In the second part a tenth of them, the
first one included, disconnect while the answer is streaming. The simulator counts the calls. The remaining clients must
receive complete and equal answers.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure
from stayfast.lab.harness.load import simulated_gateway
from stayfast.lab.harness.loopback import encode_chat_post
from stayfast.lab.harness.processes import MODEL, ServerProcess

N_TOKENS = 40
LEAVES_AFTER_CHUNKS = 3
WITHIN_S = 60.0
PROVIDER: Mapping[str, Any] = {"ttft": {"median_s": 1.5, "sigma": 0.0}, "gaps": {"median_s": 0.05, "sigma": 0.0},
                               "fills_max_tokens": True}
CACHE: Mapping[str, Any] = {"mode": "exact"}


@dataclass(frozen=True, slots=True)
class Coalesce:
    """cache: the route's cache settings."""

    full: Extent = Extent(1000)
    quick: Extent = Extent(200)
    cache: Mapping[str, Any] = field(default_factory=lambda: CACHE)

    name = "coalesce"
    statement = ("1,000 identical concurrent requests make one upstream call, and clients that leave do not affect the "
                 "others.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n = conditions.choose(self.full, self.quick).n
        figures: list[Figure] = []
        async with simulated_gateway({"slow": PROVIDER}, conditions.seed, cache=self.cache) as (sim, url):
            for question, n_leaving in (("all stay", 0), ("some leave", n // 10)):
                conditions.report_progress(f"{n} requests at once, {n_leaving} clients leave")
                figures += await _send_at_once(sim, url, question, n, n_leaving)
        return ClaimResult(tuple(figures))


async def _send_at_once(sim: ServerProcess, url: str, question: str, n: int, n_leaving: int) -> list[Figure]:
    await sim.get("/_sim/reset", "POST")
    body = json.dumps({"model": MODEL, "stream": True, "temperature": 0, "max_tokens": N_TOKENS,
                       "messages": [{"role": "user", "content": question}]}).encode()
    request = encode_chat_post(url, body, b"x-stayfast-keepalive: off\r\n")
    address = urlsplit(url)
    connections = [await asyncio.open_connection(address.hostname, address.port) for _ in range(n)]
    async with asyncio.timeout(WITHIN_S):
        answers = await asyncio.gather(*[
            _read_answer(reader, writer, request, leaves=number < n_leaving)
            for number, (reader, writer) in enumerate(connections)])
    remaining = answers[n_leaving:]
    whole = [answer for answer in remaining
             if answer.endswith(b"data: [DONE]\n\n") and answer.count(b'"content":"') >= N_TOKENS]
    n_calls = len((await sim.get("/_sim/requests?n=1000"))["requests"])
    return [Figure.count(f"{question}: upstream calls for {n} requests", n_calls, 1.0),
            Figure.count(f"{question}: clients that stayed without a whole answer", len(remaining) - len(whole)),
            Figure.count(f"{question}: different answers", len(set(whole)), 1.0)]


async def _read_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, *, leaves: bool) -> bytes:
    """The received events without comments; empty if the client left or the connection broke."""
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
