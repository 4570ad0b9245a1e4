"""A lean client of streamed chat answers over loopback, equal for a gateway and for an engine.

It searches the bytes for the first text and for the counts at the end, and parses nothing else.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import SetUpFailed

_TEXT = re.compile(rb'"content":"[^"]')
_COUNTS = {name: re.compile(rb'"%b":(\d+)' % name.encode())
           for name in ("completion_tokens", "prompt_tokens", "cached_tokens")}
_READ_BYTES = 65_536
WITHIN_S = 120.0


class EngineAnswer(NamedTuple):
    """Seconds and tokens; `text`: undecoded JSON strings."""

    ttft_s: float
    took_s: float
    n_output: int
    n_prompt: int
    n_cached: int
    text: bytes


async def stream_answer(url: str, body: bytes) -> EngineAnswer:
    """Send one chat request and read its whole stream. Raises SetUpFailed."""
    parts = urlsplit(url)
    began_at, first_at, data = SystemClock.now(), None, bytearray()
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            while piece := await reader.read(_READ_BYTES):
                data += piece
                if first_at is None and _TEXT.search(data):
                    first_at = SystemClock.now()
            writer.close()
    except (OSError, TimeoutError) as error:
        raise SetUpFailed(f"{url}: {type(error).__name__}: {error}") from None
    counts = {name: [int(found[1]) for found in pattern.finditer(data)] for name, pattern in _COUNTS.items()}
    if first_at is None or not counts["completion_tokens"]:
        raise SetUpFailed(f"{url}: no answer: {bytes(data[:300]).decode(errors='replace')}")
    texts = b"".join(re.findall(rb'"content":"((?:[^"\\]|\\.)*)"', data))
    return EngineAnswer(first_at - began_at, SystemClock.now() - began_at, counts["completion_tokens"][-1],
                          counts["prompt_tokens"][-1], (counts["cached_tokens"] or [0])[-1], texts)


async def run_at_a_time(url: str, bodies: Sequence[bytes], n_at_a_time: int) -> float:
    """Output tokens per second of all these requests, so many of them at a time."""
    left, n_tokens = iter(bodies), 0

    async def work() -> None:
        nonlocal n_tokens
        for body in left:
            n_tokens += (await stream_answer(url, body)).n_output

    began_at = SystemClock.now()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(n_at_a_time):
            tasks.create_task(work())
    return n_tokens / (SystemClock.now() - began_at)
