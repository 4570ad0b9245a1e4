"""Replays traffic in virtual time through the production gateway, to upstreams fitted from a log."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.events import Fact, RequestDone
from stayfast.core.types import Api
from stayfast.lab.harness.virtual import run_virtual, system_with_sink
from stayfast.lab.plan.fitting import UpstreamFit, quantile_of
from stayfast.lab.plan.replayed import ReplayCall, ReplayedUpstreamSettings
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.wire.request_body import decode

BYTES_PER_TOKEN = 4
_MOST_BODY_TOKENS = 50_000  # longer prompts are all long
_ROUTE = "m"
_DIGITS = 12
_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TrafficScenario:
    """A day like the one in the log, and the gateway in front of it. prices: by upstream; missing: not priced."""

    calls: tuple[ReplayCall, ...]
    fits: Mapping[str, UpstreamFit]
    route: RouteSettings
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    prices: Mapping[str, Price] = field(default_factory=dict)
    limits: Mapping[str, LimitConfig] = field(default_factory=dict)
    machine_usd_per_h: float = 0.0  # of all replicas together

    @property
    def span_s(self) -> float:
        return max(1.0, self.calls[-1].at_s - self.calls[0].at_s)

    def with_calls(self, calls: Sequence[ReplayCall]) -> "TrafficScenario":
        return replace(self, calls=tuple(calls))


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What the clients of one run saw, in the order of the calls; infinite: the request failed.

    first_s: until the first token, or the end of an answer that is not streamed.
    """

    first_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    cost_usd: float
    n_attempts: int
    n_cached: int
    span_s: float

    @property
    def n(self) -> int:
        return len(self.first_s)

    @property
    def failed_share(self) -> float:
        return sum(value == inf for value in self.e2e_s) / max(1, self.n)

    @property
    def usd_per_day(self) -> float:
        return self.cost_usd * 86_400.0 / self.span_s

    def quantile_s(self, what: str, q: float) -> float:
        """A quantile of "first" or "e2e"."""
        ordered = sorted(self.first_s if what == "first" else self.e2e_s)
        is_bounded = ordered[min(len(ordered) - 1, int(q * (len(ordered) - 1)) + 1)] < inf
        return quantile_of(ordered, q) if is_bounded else inf

    def good_share(self, first_s: float) -> float:
        """The share of requests whose first token came within `first_s`."""
        return sum(value <= first_s for value in self.first_s) / max(1, self.n)


class _ResultSink:
    """Collects the ends of requests by their id."""

    def __init__(self) -> None:
        self.done: dict[str, RequestDone] = {}

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, RequestDone):
            self.done[fact.request_id] = fact


def run_replay(scenario: TrafficScenario, seed: int) -> ReplayResult:
    """One run in virtual time. Equal seeds draw equal luck for equal requests, whatever else differs."""
    return run_virtual(_replay, scenario, seed)


async def _replay(loop: SimLoop, scenario: TrafficScenario, seed: int) -> ReplayResult:
    calls = {f"req_{number:x}": call for number, call in enumerate(scenario.calls)}
    sink = _ResultSink()
    upstreams = {name: ReplayedUpstreamSettings(
        fit, calls, seed, prices={"*": scenario.prices[name]} if name in scenario.prices else {},
        limit=scenario.limits.get(name, LimitConfig())) for name, fit in scenario.fits.items()}
    settings = Settings(upstreams=upstreams, routes={_ROUTE: replace(scenario.route, model=None)},
                        admission=scenario.admission, log=LogSettings(level="error", requests=False))
    gateway = system_with_sink(settings, sink, loop, Random(seed)).gateway
    began_at = loop.now()
    async with asyncio.TaskGroup() as group:
        for request_id, call in calls.items():
            wait_s = began_at + call.at_s - loop.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(_send(gateway, request_id, call, loop))
    return _collect(sink, calls, scenario.span_s)


async def _send(gateway: Gateway, request_id: str, call: ReplayCall, loop: SimLoop) -> None:
    request = decode(Api.CHAT, _body(call))
    try:
        reply = await gateway.serve(request, Arrival(request_id, loop.now(), call.tenant or None))
        try:
            while await reply.next() is not None:
                pass
        finally:
            reply.close()
    except StayfastError:
        return  # the gateway's fact holds the reason


def _body(call: ReplayCall) -> bytes:
    n_bytes = BYTES_PER_TOKEN * min(call.n_input, _MOST_BODY_TOKENS)
    content = f"{call.content:0{_DIGITS}d}".ljust(n_bytes, "x")
    body = {"model": _ROUTE, "messages": [{"role": "user", "content": content}], "temperature": 0}
    return _ENCODE(body | ({"stream": True, "stream_options": {"include_usage": True}} if call.is_stream else {}))


def _collect(sink: _ResultSink, calls: Mapping[str, ReplayCall], span_s: float) -> ReplayResult:
    first_s, e2e_s, cost_usd, n_attempts, n_cached = [], [], 0.0, 0, 0
    for request_id, call in calls.items():
        done = sink.done[request_id]
        is_good = done.status < 400 and done.degraded is None
        took_s = done.ended_at - done.accepted_at
        first_s.append(inf if not is_good else done.ttft_s if call.is_stream and done.ttft_s is not None else took_s)
        e2e_s.append(took_s if is_good else inf)
        cost_usd += done.cost_usd or 0.0
        n_attempts += done.n_attempts
        n_cached += done.cache in ("hit", "semantic", "coalesced", "stale")
    return ReplayResult(tuple(first_s), tuple(e2e_s), cost_usd, n_attempts, n_cached, span_s)
