"""Measure the cost of telemetry on the request's path: the figures of docs/telemetry.md.

    .venv/bin/python scripts/bench/telemetry.py

The real pipeline on uvloop with an upstream in memory that answers at once, measured in processor time, with and without
observers in turns. On a busy machine, the best rounds show the cost itself. Then each part is measured alone.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random

import msgspec
import uvloop

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.events import Fact, RequestDone, Sink
from stayfast.core.types import AnswerSummary, Api, Chunk, Usage
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.fact_batch import MAX_FACTS, FactBatch, handle_facts
from stayfast.observe.log import LineWriter, LogConfig
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.histogram import LogHistogram, Window
from stayfast.settings import SettingsText, load_settings
from stayfast.upstreams.base import Call
from stayfast.wire.request_body import decode

N_CHUNKS, N_REQUESTS, N_ROUNDS = 32, 500, 41
SETTINGS = """\
upstreams:
  u:
    {kind: openai, base_url: "http://127.0.0.1:9/v1", key: x, probe: false,
     prices: {"*": {input_per_mtok: 1, output_per_mtok: 4}}}
routes: {m: {upstreams: [u], slo: {ttft: {under_s: 0.5, share: 0.95}}}}
"""
REQUEST = decode(Api.CHAT, msgspec.json.encode(
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}))


class InstantAnswer:
    """A stream that never waits."""

    def __init__(self, n_chunks: int) -> None:
        self.summary = AnswerSummary()
        self._left = n_chunks
        self._chunk = Chunk(b"data: {}\n\n", 1)

    async def next(self) -> Chunk | None:
        if self._left == 0:
            self.summary.is_complete, self.summary.usage, self.summary.finish_reason = True, Usage(10, 32), "stop"
            return None
        self._left -= 1
        return self._chunk

    def close(self) -> None:
        """Nothing to close."""


class InstantUpstream:
    """An upstream in memory."""

    name, kind, always_streams = "u", "openai", False

    def can_serve(self, api: Api) -> bool:
        return True

    async def open(self, call: Call) -> InstantAnswer:
        return InstantAnswer(N_CHUNKS)

    def close(self) -> None:
        """Nothing to close."""


class NullSink:
    """Discards all facts."""

    def emit(self, fact: Fact) -> None:
        """Discard."""


class LastFacts(NullSink):
    """Stores the last fact of each kind."""

    def __init__(self) -> None:
        self.by_type: dict[type, Fact] = {}

    def emit(self, fact: Fact) -> None:
        self.by_type[type(fact)] = fact


def system(observers: Observers, sink: Sink | None) -> System:
    """A gateway with the upstream in memory. `sink` replaces the observers' own."""
    if sink is not None:
        observers.sink = sink
    settings = load_settings(SettingsText("telemetry.py", SETTINGS), {}, kinds=KINDS)
    built = build(settings, observers, {}, SystemClock(), Random(1))
    built.registry["u"].upstream = InstantUpstream()
    return built


async def serve(built: System, n: int) -> float:
    """Seconds of processor time for each of `n` sequential requests, including the log's thread."""
    clock, began_at = SystemClock(), time.process_time()
    for _ in range(n):
        reply = await built.gateway.serve(REQUEST, Arrival("req_0123456789abcdef", clock.now()))
        while await reply.next() is not None:
            pass
        await asyncio.sleep(0)  # the loop closes the request's timer
    return (time.process_time() - began_at) / n


async def whole_path(observers: Callable[[], Observers]) -> tuple[list[tuple[float, float]], Fact, Observers]:
    """Microseconds a request without and with observers, in turns; a RequestDone as they are."""
    last_facts, observed = LastFacts(), observers()
    without, with_observers = system(observers(), NullSink()), system(observed, None)
    await serve(system(observers(), last_facts), 1)
    pairs = [(await serve(without, N_REQUESTS) * 1e6, await serve(with_observers, N_REQUESTS) * 1e6)
             for _ in range(N_ROUNDS)]
    return pairs[1:], last_facts.by_type[RequestDone], observed


def each_ns(act: Callable[[], object], n: int = 20_000) -> float:
    """Nanoseconds a call, the best of five runs, without the cost of the loop."""
    def nothing() -> None:
        pass

    def run(call: Callable[[], object]) -> float:
        began_at = time.process_time()
        for _ in range(n):
            call()
        return (time.process_time() - began_at) / n * 1e9

    return min(run(act) for _ in range(5)) - min(run(nothing) for _ in range(5))


def parts(fact: Fact, observers: Observers) -> list[tuple[str, float]]:
    """Each part alone, in nanoseconds."""
    clock, now = SystemClock(), SystemClock().now()
    values, histogram, window = [Random(7).lognormvariate(-0.5, 1.0) for _ in range(1000)], LogHistogram(), Window()
    rows: list[tuple[str, float]] = []

    def over(add: Callable[[float], object]) -> Callable[[], None]:
        def all_of_them() -> None:
            for value in values:
                add(value)
        return all_of_them

    nothing_ns = each_ns(over(lambda _: None), 20)
    rows.append(("LogHistogram.add", (each_ns(over(histogram.add), 20) - each_ns(over(abs), 20)) / 1000))
    rows.append(("Window.add", (each_ns(over(lambda value: window.add(value, now)), 20) - nothing_ns) / 1000))
    cadence = TokenTimings("m", "u", FactBatch(observers.metrics))
    cadence.start(now)
    rows.append(("a chunk: clock, gap, stall detector, gap histogram",
                 each_ns(lambda: cadence.note_content(clock.now()), 50_000)))
    facts = [fact] * (MAX_FACTS // 3)  # a batch also holds attempts and reused connections
    for name, sink in (("log", observers.log), ("metrics", observers.metrics), ("recent", observers.recent)):
        rows.append((f"RequestDone into {name}", each_ns(lambda sink=sink: handle_facts(sink, facts), 1000) / len(facts)))
    return rows


def show(title: str, rows: Sequence[tuple[str, float]], unit: str) -> None:
    """Print a table."""
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:50} {figure:9.2f} {unit}")


def main() -> None:
    """Measure and print."""
    devnull = os.open(os.devnull, os.O_WRONLY)

    def observers() -> Observers:
        made = Observers(load_settings(SettingsText("telemetry.py", SETTINGS), {}, kinds=KINDS), SystemClock())
        made.writer = made.log._writer = LineWriter(LogConfig(fd=devnull))
        made.writer.start()
        return made

    pairs, fact, observed = uvloop.run(whole_path(observers))
    without_us, with_us = zip(*pairs, strict=True)
    for title, of in (("best round", min), ("median", statistics.median)):
        show(f"A request of {N_CHUNKS} chunks through the pipeline, no network: {title} of {len(pairs)}", [
            ("without observers", of(without_us)), ("with log, metrics and recent requests", of(with_us)),
            ("telemetry", of(with_us) - of(without_us))], "us")
    assert isinstance(fact, RequestDone)
    show("Each part alone", parts(fact, observed), "ns")


if __name__ == "__main__":
    main()
