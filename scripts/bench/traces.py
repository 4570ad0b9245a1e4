"""Measure the cost of tracing: on the request's path, in the export thread, and for a gateway under load.

    .venv/bin/python scripts/bench/traces.py [--seconds 4] [--rounds 3]

Three gateways take turns: without tracing, with all requests traced, and with 1 % of them. The collector shares core 1 with
the load, so its cost is not in the figures.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from run import HERE, SETTINGS, UPSTREAM, cpu_s, free_ports, open_loop, process, upstream

from stayfast.core.events import AttemptDone, RequestDone, Trace
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Api, Outcome, Stage, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.tracing.config import TraceConfig
from stayfast.observe.tracing.exporter import SpanExporter
from stayfast.observe.tracing.otlp import SpanEncoder
from stayfast.pipeline.exchange import Arrival
from stayfast.server.http_request import forwarded_headers, parse_caller_trace
from stayfast.wire.trace_context import encode_trace_headers

FIELDS = {b"traceparent": b"00-12345678901234567890123456789012-1234567890123456-01", b"tracestate": b"vendor=abc"}
N_TIMES = 50_000


def each_us(act: Callable[[], object]) -> float:
    """Microseconds of one call: the best of five runs."""
    best_s = 9.0
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(N_TIMES):
            act()
        best_s = min(best_s, time.process_time() - began_s)
    return best_s / N_TIMES * 1e6


def make_done(trace: Trace | None) -> RequestDone:
    """The fact of a request with one upstream call."""
    times = StageTimes(1.0, tuple((stage, 1.1) for stage in Stage), 6.0)
    call = AttemptDone("m", "u", 1.0, 1.1, Outcome.SUCCESS, 0.1, None, 1, "r", Api.CHAT, "openai", "gpt-x", None,
                       Usage(10, 20), "stop", span_id="1" * 16)
    return RequestDone("r", Api.CHAT, "m", "m", True, 200, 1.0, 1.1, 1.7e9, times, "u", 1, 0.1, 32, Usage(10, 20), "stop",
                       trace=trace, attempts=(call,))


def pass_through(caller: Trace | None) -> Trace | None:
    """Without tracing: forward the caller's context unchanged."""
    return caller


def measure_path() -> None:
    """The cost on the request's path: read the headers, place the trace, make the call's span, enqueue."""
    rng = random.Random(1)
    tracing = SpanExporter(TraceConfig(max_pending=64), lambda: None, lambda *words: None, rng, dict)  # type: ignore[arg-type,return-value]

    def path(fields: dict[bytes, bytes], place: Callable[[Trace | None], Trace | None], *, is_on: bool) -> float:
        done = make_done(place(parse_caller_trace(fields)))

        def once() -> None:
            trace = place(parse_caller_trace(fields))
            arrival = Arrival("r", 1.0, None, forwarded_headers(fields, trace), trace=trace)
            span = arrival.new_span(rng)
            if span is not None:
                encode_trace_headers(span)
            if is_on:
                handle_facts(tracing, [done])

        return each_us(once)

    off = path({}, pass_through, is_on=False)
    passed = path(FIELDS, pass_through, is_on=False)
    on, child = path({}, tracing.start_trace, is_on=True), path(FIELDS, tracing.start_trace, is_on=True)
    print(f"on the request's path, with one call: off {off:.2f} us, with a caller's context {passed:.2f} us; "
          f"on {on:.2f} us, with a parent span {child:.2f} us")


def measure_thread() -> None:
    """The cost in the export thread: make and encode the nine spans of a request, with 40 attributes."""
    spans = SpanEncoder({"service.name": "stayfast", "service.version": "1"}, "1", random.Random(1))
    some = [make_done(Trace("1" * 32, "2" * 16))] * 8
    encoded = spans.encode(some, {})
    best_s = 9.0
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(200):
            spans.encode(some, {})
        best_s = min(best_s, time.process_time() - began_s)
    print(f"in the thread: {best_s / 1600 * 1e6:.1f} us and {len(encoded) / 8:.0f} bytes a request")


class Collector(asyncio.Protocol):
    """Accepts everything; parses only lengths."""

    def __init__(self) -> None:
        self._n_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._n_left == 0:
            head, _, body = data.partition(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            self._n_left = int(found[1]) if found is not None else 0
            data = body
        self._n_left -= len(data)
        if self._n_left <= 0:
            self._n_left = 0
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")  # type: ignore[attr-defined]


async def collect(port: int) -> None:
    """Run the collector."""
    server = await asyncio.get_running_loop().create_server(Collector, "127.0.0.1", port)
    await server.serve_forever()


@contextlib.contextmanager
def gateways(folder: str) -> Iterator[dict[str, tuple[int, int]]]:
    """Name to port and process id."""
    collector, *ports = free_ports(4)
    tracing = {"off": "", "on": f'tracing: {{exporter: otlp, endpoint: "http://127.0.0.1:{collector}"}}\n'}
    tracing["1 %"] = tracing["on"].replace("}", ", sample: 0.01}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(process([sys.executable, str(HERE / "traces.py"), "--collector", str(collector)], collector, 1,
                                    folder))
        found = {}
        for (name, text), port in zip(tracing.items(), ports, strict=True):
            path = Path(folder, f"{port}.yaml")
            path.write_text(SETTINGS + text)
            command = [str(Path(sys.executable).with_name("stayfast")), "serve", "--config", str(path), "--port", str(port)]
            found[name] = (port, stack.enter_context(process(command, port, 0, folder)).pid)
        yield found


def measure_under_load(folder: str, options: argparse.Namespace) -> None:
    """CPU a request in a closed loop, and the time to the first byte in an open loop."""
    spent_us: dict[str, list[float]] = {}
    waits_us: dict[str, list[tuple[float, float]]] = {}
    os.sched_setaffinity(0, {1})
    with process(upstream(), UPSTREAM, 1, folder), gateways(folder) as found:
        for _ in range(options.rounds):
            for name, (port, pid) in found.items():
                before_s = cpu_s(pid)
                ran = subprocess.run(
                    ["wrk", "-t1", "-c32", f"-d{options.seconds}s", "-s", str(HERE / "chat.lua"),
                     f"http://127.0.0.1:{port}/v1/chat/completions"], capture_output=True, text=True, check=True,
                    env={**os.environ, "STREAM": "0"}).stdout
                n_requests = int(re.findall(r"(\d+) requests in", ran)[0])
                time.sleep(1.5)  # the thread finishes the spans of these requests
                spent_us.setdefault(name, []).append((cpu_s(pid) - before_s) / n_requests * 1e6)
                waits = asyncio.run(open_loop(port, options.rate, options.seconds, random.Random(1)))
                waits_us.setdefault(name, []).append((statistics.median(waits) * 1e6, waits[int(len(waits) * 0.99)] * 1e6))
        for name in found:
            p50_us, p99_us = (statistics.median(wait[at] for wait in waits_us[name]) for at in (0, 1))
            print(f"gateway, tracing {name:4} {statistics.median(spent_us[name]):6.1f} us CPU a request "
                  f"({min(spent_us[name]):.1f} to {max(spent_us[name]):.1f}); first byte at {options.rate:g} streams/s "
                  f"p50 {p50_us:5.0f} us, p99 {p99_us:5.0f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=4, help="of each timed run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100, help="streams a second in the open loop")
    parser.add_argument("--collector", type=int, help="run the collector on this port")
    options = parser.parse_args()
    if options.collector:
        uvloop.run(collect(options.collector))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f} before, Python {sys.version.split()[0]}, "
          f"{time.strftime('%Y-%m-%d %H:%M')}")
    measure_path()
    measure_thread()
    with tempfile.TemporaryDirectory() as folder:
        measure_under_load(folder, options)
    print(f"load average {os.getloadavg()[0]:.2f} after")
