"""What telemetry costs on the request's path: the figures of docs/telemetry.md.

    .venv/bin/python scripts/bench/telemetry.py

The real pipeline on uvloop, with an upstream that answers at once from memory, so that nothing but our own work is
timed, in processor time. With and without observers in turns; on a busy machine the best rounds say what it takes, the
medians what that machine made of it. Then each part alone.
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
from stayfast.observe.batch import MOST, Batch
from stayfast.observe.log import LineWriter, LogConfig
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.histogram import LogHistogram, Window
from stayfast.settings import SettingsText, load
from stayfast.upstreams.base import Call
from stayfast.wire.json_input import decode

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


class Answer:
    """A stream that never waits."""

    def __init__(self, n_chunks: int) -> None:
        self.sight = AnswerSummary()
        self._left = n_chunks
        self._chunk = Chunk(b"data: {}\n\n", 1)

    async def next(self) -> Chunk | None:
        """The next chunk, at once."""
        if self._left == 0:
            self.sight.is_complete, self.sight.usage, self.sight.finish_reason = True, Usage(10, 32), "stop"
            return None
        self._left -= 1
        return self._chunk

    def close(self) -> None:
        """Holds nothing."""


class Instant:
    """An upstream in memory."""

    name, kind, always_streams = "u", "openai", False

    def can_serve(self, api: Api) -> bool:
        """Whatever."""
        return True

    async def open(self, call: Call) -> Answer:
        """At once."""
        return Answer(N_CHUNKS)

    def close(self) -> None:
        """Holds nothing."""


class Deaf:
    """A sink that takes nothing."""

    def emit(self, fact: Fact) -> None:
        """Nothing."""


class Keeper(Deaf):
    """Remembers the last fact of each kind."""

    def __init__(self) -> None:
        self.seen: dict[type, Fact] = {}

    def emit(self, fact: Fact) -> None:
        """Remember it."""
        self.seen[type(fact)] = fact


def system(observers: Observers, sink: Sink | None) -> System:
    """A gateway before the upstream in memory; `sink` in place of the observers' own."""
    if sink is not None:
        observers.sink = sink
    settings = load(SettingsText("telemetry.py", SETTINGS), {}, kinds=KINDS)
    built = build(settings, observers, {}, SystemClock(), Random(1))
    built.registry["u"].upstream = Instant()
    return built


async def serve(built: System, n: int) -> float:
    """Seconds of processor time for each of `n` requests, one after the other; the log's thread is in it."""
    clock, began_at = SystemClock(), time.process_time()
    for _ in range(n):
        reply = await built.gateway.serve(REQUEST, Arrival("req_0123456789abcdef", clock.now()))
        while await reply.next() is not None:
            pass
        await asyncio.sleep(0)  # the loop closes the request's timer
    return (time.process_time() - began_at) / n


async def whole_path(observers: Callable[[], Observers]) -> tuple[list[tuple[float, float]], Fact, Observers]:
    """Microseconds a request without and with observers, in turns; a RequestDone as they are."""
    keeper, seeing = Keeper(), observers()
    without, withal = system(observers(), Deaf()), system(seeing, None)
    await serve(system(observers(), keeper), 1)
    pairs = [(await serve(without, N_REQUESTS) * 1e6, await serve(withal, N_REQUESTS) * 1e6) for _ in range(N_ROUNDS)]
    return pairs[1:], keeper.seen[RequestDone], seeing


def each_ns(act: Callable[[], object], n: int = 20_000) -> float:
    """Nanoseconds a call, the best of five runs, the loop's own cost taken off."""
    def nothing() -> None:
        pass

    def run(it: Callable[[], object]) -> float:
        began_at = time.process_time()
        for _ in range(n):
            it()
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
    cadence = TokenTimings("m", "u", Batch(observers.metrics))
    cadence.begin(now)
    rows.append(("a chunk: clock, gap, stall judge, gap histogram", each_ns(lambda: cadence.content(clock.now()), 50_000)))
    facts = [fact] * (MOST // 3)  # what a batch holds of them, beside attempts and reused connections
    for name, sink in (("log", observers.log), ("metrics", observers.metrics), ("recent", observers.recent)):
        rows.append((f"RequestDone into {name}", each_ns(lambda sink=sink: sink.take(facts), 1000) / len(facts)))
    return rows


def show(title: str, rows: Sequence[tuple[str, float]], unit: str) -> None:
    """A table."""
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:50} {figure:9.2f} {unit}")


def main() -> None:
    """Measure and print."""
    devnull = os.open(os.devnull, os.O_WRONLY)

    def observers() -> Observers:
        made = Observers(load(SettingsText("telemetry.py", SETTINGS), {}, kinds=KINDS), SystemClock())
        made.writer = made.log._writer = LineWriter(LogConfig(fd=devnull))
        made.writer.start()
        return made

    pairs, fact, seeing = uvloop.run(whole_path(observers))
    without_us, with_us = zip(*pairs, strict=True)
    for title, of in (("best round", min), ("median", statistics.median)):
        show(f"A request of {N_CHUNKS} chunks through the pipeline, no network: {title} of {len(pairs)}", [
            ("without observers", of(without_us)), ("with log, metrics and recent requests", of(with_us)),
            ("telemetry", of(with_us) - of(without_us))], "us")
    assert isinstance(fact, RequestDone)
    show("Each part alone", parts(fact, seeing), "ns")


if __name__ == "__main__":
    main()
