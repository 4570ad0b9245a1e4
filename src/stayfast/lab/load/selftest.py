"""Measures the error of the bench itself, against a server in this process that records when it writes each piece. Any later
timestamp of the client is the client's error, including loopback and event loop.

Client and server share one loop and one core, so the figures are upper bounds.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.http.server.connection import ConnectionTasks, HttpServer
from stayfast.http.server.connection import ServerConnection as HttpConnection
from stayfast.http.server.parser import HttpLimits, HttpRequest
from stayfast.http.server.response import LAST_CHUNK, connection_line, encode_chunk, status_line, whole_response
from stayfast.lab.load.arrivals import Gamma
from stayfast.lab.load.client import HttpTarget, LoadConnection, LoadTargetConfig, RequestConfig
from stayfast.lab.load.lengths import ConstantLength
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, read_cpu_s, run_plan
from stayfast.lab.load.reader import ChatParser, MeasuredAnswer
from stayfast.lab.load.result import GapCounts, Result, Sample, Subject
from stayfast.lab.load.runner import DueShot
from stayfast.lab.load.schedule import Prompts, ScheduleLimit, Workload

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_PIECE = (b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,'
          b'"delta":{"content":" word"}}]}\n\n')
_ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
_LAST = (b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
         b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":16,"completion_tokens":%d}}\n\ndata: [DONE]\n\n')


@dataclass(frozen=True, slots=True)
class SelftestTiming:
    """The server's timing: a first piece after `ttft_s`, then `n_pieces` - 1 more, `gap_s` apart."""

    ttft_s: float = 0.02
    gap_s: float = 0.005
    n_pieces: int = 16


class WrittenTimes(msgspec.Struct, frozen=True, gc=False):
    """Instants at which the server wrote an answer's first and last piece."""

    first_at: float
    last_at: float


class SelftestServer:
    """Answers chat completions with a fixed timing; an application of `http.server`."""

    request_type = HttpRequest
    limits = HttpLimits()

    def __init__(self, timing: SelftestTiming, clock: Clock) -> None:
        self.timing = timing
        self.clock = clock
        self.write_times: dict[str, WrittenTimes] = {}  # by the text of the last message
        self.url = ""
        self.errors: list[BaseException] = []
        self._http: HttpServer[HttpRequest] = HttpServer(self, clock, ConnectionTasks(self.errors.append))

    async def start(self) -> str:
        """Listen on loopback and return the base URL, which is also `url`."""
        await self._http.listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._http.bound_addresses()[0][1]}/v1"
        return self.url

    def close(self) -> None:
        self._http.stop_listening()

    def check_head(self, request: HttpRequest, *, is_refusing: bool) -> None:
        """Accepts every request."""

    async def handle(self, connection: HttpConnection[HttpRequest], request: HttpRequest) -> None:
        timing, write, now = self.timing, connection.write, self.clock.now
        key: str = msgspec.json.decode(request.body)["messages"][-1]["content"]
        if timing.ttft_s:
            await asyncio.sleep(timing.ttft_s)
        write(_HEAD + encode_chunk(_ROLE))
        first_at = at = now()
        write(encode_chunk(_PIECE))
        for _ in range(timing.n_pieces - 1):
            await asyncio.sleep(timing.gap_s)
            at = now()
            write(encode_chunk(_PIECE))
        self.write_times[key] = WrittenTimes(first_at, at)
        write(encode_chunk(_LAST % timing.n_pieces) + LAST_CHUNK)
        connection.finish(request)

    def render_error(self, request: HttpRequest, error: StayfastError, *, keep_alive: bool) -> bytes:
        """Plain text; the client counts it as a failed sample."""
        return whole_response(status_line(error.status), error.message.encode(), connection_line(request, keep_alive=False))

    def note_refusal(self, request: HttpRequest, error: StayfastError) -> None:
        """Refusals are not counted."""


class ComparingTarget(HttpTarget):
    """A target that compares each sample with the server's record."""

    def __init__(self, server: SelftestServer, prompts: Prompts, clock: Clock) -> None:
        super().__init__("selftest", LoadTargetConfig(server.url, RequestConfig()), prompts, clock)
        self.ttft_error_s: array[float] = array("d")
        self.end_error_s: array[float] = array("d")
        self._prompts = prompts
        self._server = server

    async def send(self, due: DueShot) -> Sample:
        sample = await super().send(due)
        truth = self._server.write_times.pop(self._prompts.user_message(due.shot), None)
        if truth is not None and due.shot.at_s >= 0:
            self.ttft_error_s.append(due.zero_at + sample.first_s - truth.first_at)
            self.end_error_s.append(due.zero_at + sample.last_s - truth.last_at)
        return sample


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The client's errors: its timestamp minus the server's, in seconds, sorted."""

    timing: SelftestTiming
    ttft_error_s: Sequence[float]
    end_error_s: Sequence[float]  # of the last piece
    result: Result
    cpu_s_per_chunk: float  # client and server, with back-to-back chunks over sockets
    read_s_per_chunk: float  # the client's parsing alone, without sockets


async def run_selftest(clock: Clock, *, rate_rps: float = 200.0, seconds: float = 3.0, seed: int = 0) -> SelftestResult:
    """Measure the bench itself, in about `seconds` + 1."""
    workload = Workload(ConstantLength(16), ConstantLength(16), Gamma(rate_rps))
    timing = SelftestTiming()
    plan = MeasurePlan(workload, ScheduleLimit(seconds, warmup_s=0.25), seed, timeout_s=10)
    compared, result = await _measure_server(timing, plan, clock)
    return SelftestResult(timing, sorted(compared.ttft_error_s), sorted(compared.end_error_s), result,
                 await _measure_cpu_per_chunk(clock, seed), measure_parse_s_per_chunk(clock))


async def _measure_server(timing: SelftestTiming, plan: MeasurePlan, clock: Clock) -> tuple[ComparingTarget, Result]:
    server = SelftestServer(timing, clock)
    url = await server.start()
    target = ComparingTarget(server, Prompts(plan.seed), clock)
    try:
        results = await run_plan(plan, [(Subject("selftest", url, "chat", "m"), target)], clock, LoadOrigin())
    finally:
        server.close()
    if server.errors:
        raise server.errors[0]
    return target, results[0]


async def _measure_cpu_per_chunk(clock: Clock, seed: int) -> float:
    timing = SelftestTiming(0.0, 0.0, 200)
    plan = MeasurePlan(Workload(ConstantLength(16), ConstantLength(16)), ScheduleLimit(n_requests=100), seed,
                       n_concurrent=10)
    began_s = read_cpu_s()
    _, result = await _measure_server(timing, plan, clock)
    return (read_cpu_s() - began_s) / max(1, sum(result.samples.ints["n_chunks"]))


class _NullTransport(asyncio.Transport):
    """Discards all writes."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


def measure_parse_s_per_chunk(clock: Clock, n_chunks: int = 20_000) -> float:
    """Seconds to timestamp, parse and count one chunk that arrives alone. Runs on a loop."""
    connection = LoadConnection(_NullTransport(), clock.now, lambda _: None, lambda _: None)
    done = asyncio.get_running_loop().create_future()
    connection.send(b"", MeasuredAnswer(ChatParser(), streams=True, gaps=GapCounts(), zero_at=clock.now(), done=done))
    connection.data_received(_HEAD)
    chunk = encode_chunk(_PIECE)
    began_at = clock.now()
    for _ in range(n_chunks):
        connection.data_received(chunk)
    return (clock.now() - began_at) / n_chunks


def format_lines(found: SelftestResult) -> list[str]:
    """The report."""
    health, timing = found.result.health, found.timing
    lateness = _format_us(health.lateness_p50_s, health.lateness_p99_s, health.lateness_max_s)
    lag = _format_us(health.loop_lag_p50_s, health.loop_lag_p99_s, health.loop_lag_max_s)
    return [
        (f"{len(found.ttft_error_s)} answers at {found.result.offered_rps:.0f}/s from a server in this process: first piece "
         f"after {timing.ttft_s * 1e3:g} ms, {timing.n_pieces} pieces {timing.gap_s * 1e3:g} ms apart"),
        f"first piece  timestamp {_format_errors(found.ttft_error_s)} after its write",
        f"last piece   timestamp {_format_errors(found.end_error_s)} after its write",
        f"lateness     {lateness}", f"loop lag     {lag}",
        (f"cost         {found.cpu_s_per_chunk * 1e6:.1f} us of CPU a chunk over sockets, client and server; "
         f"{found.read_s_per_chunk * 1e6:.1f} us for the client's parsing alone"),
        *(f"INVALID      {reason}" for reason in health.verdict)]


def _format_errors(errors_s: Sequence[float]) -> str:
    if not errors_s:
        return "never"
    return _format_us(*(errors_s[int(share * (len(errors_s) - 1))] for share in (0.5, 0.99, 1.0)))


def _format_us(p50_s: float, p99_s: float, max_s: float) -> str:
    return f"p50 {p50_s * 1e6:.0f} us, p99 {p99_s * 1e6:.0f} us, max {max_s * 1e6:.0f} us"
