"""A day of traffic to a simulated provider whose parameters are drawn by a seed, for `prove plan`.

A planner sees the log lines of `HiddenWorld.run()` and the gateway's settings, nothing else. `HiddenWorld.change(name)`
makes a change in the world itself. Three of the changes have no effect, as the world has nothing for them to improve. Which
three depends on the seed; the same names have an effect in other worlds.

    hosted   waits of a mixture of two lognormals times (1 + k * uncached tokens), whatever the load
    engine   one prefill at a time, and a batch that decodes together
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.lab.harness.virtual import run_virtual, seed_provider, system_with_sink
from stayfast.lab.simulated import (
    EngineModel,
    FaultKind,
    FaultRule,
    GapConfig,
    Mixture,
    PromptCacheModel,
    ProviderConfig,
)
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.wire.request_body import decode

ROUTE: Final = "m"
N_OFF: Final = 3
HOSTED: Final = ("stream", "prefix", "cache", "hits", "machine", "lane", "diet", "cap", "hedge", "timeout")
ENGINE: Final = ("stream", "prefix", "cache", "hits", "quantise", "replica", "speculate", "diet", "cap", "load2")
MAY_BE_OFF: Final = {"hosted": ("stream", "prefix", "cache", "lane", "cap", "hedge", "timeout"),
                     "engine": ("stream", "prefix", "cache", "cap")}
VALUES: Final[Mapping[str, float]] = {
    "stream": 1.0, "prefix": 0.6, "cache": 1.0, "hits": 0.4, "machine": 0.4, "lane": 2000.0, "diet": 0.3, "cap": 200.0,
    "hedge": 1.0, "timeout": 6.0, "quantise": 1.5, "replica": 1.0, "speculate": 0.7, "load2": 2.0}
SPECULATION_SPEED: Final = 1.5
PRICE: Final = Price(1.0, 4.0, 0.1)
LONGEST_TAIL_S: Final = 1.2  # so that a time-out of VALUES ends no healthy answer
MOST_OUTPUT: Final = 4096
_LIMIT: Final = LimitConfig(mode="off")
_WORD: Final = "abc "
_ENCODE: Final = msgspec.json.Encoder().encode


class DayRequest(msgspec.Struct, frozen=True):
    """One request. n_shared: prompt tokens at its start that all requests have in common."""

    at_s: float
    n_input: int
    n_output: int
    is_stream: bool
    content: int
    n_shared: int = 0


@dataclass(frozen=True, slots=True)
class DaySettings:
    """The gateway in front of the provider, which a planner may know."""

    route: RouteSettings
    admission: AdmissionConfig


@dataclass(frozen=True, slots=True)
class HiddenWorld:
    """kind: hosted or engine. off: the changes without an effect."""

    kind: str
    off: tuple[str, ...]
    requests: tuple[DayRequest, ...]
    providers: tuple[ProviderConfig, ...]
    settings: DaySettings

    @property
    def changes(self) -> tuple[str, ...]:
        return HOSTED if self.kind == "hosted" else ENGINE

    def run(self, seed: int) -> list[bytes]:
        """The log lines of one day. The provider's draws depend on `seed`."""
        return run_virtual(_run_day, self, seed)

    def change(self, name: str, seed: int) -> "HiddenWorld":
        """The same world with one change of VALUES."""
        return _alter(self, name, VALUES[name], Random(seed))


def draw_world(seed: int, kind: str, n_requests: int) -> HiddenWorld:
    """A world whose parameters all come from `seed`."""
    rng = Random(seed * 7919 + (kind == "engine"))
    off = _draw_off(rng, kind)
    draw = _draw_hosted if kind == "hosted" else _draw_engine
    provider, rate = draw(rng, off)
    requests = _draw_requests(rng, off, n_requests, rate, longest=1000 if "prefix" in off else 12_000)
    admission = AdmissionConfig()
    if kind == "hosted":
        is_scarce = "lane" not in off
        admission = AdmissionConfig(24 if is_scarce else 4000, QueueConfig(20_000, 600.0, 600.0), reserved_share=0.0)
        if not is_scarce:
            requests = [msgspec.structs.replace(one, n_input=min(one.n_input, 1500)) for one in requests]
    route = RouteSettings(("provider",), hedge=HedgeConfig(mode="off"))
    route = replace(route, timeouts=replace(route.timeouts, first_token_s=30.0))
    return HiddenWorld(kind, off, tuple(requests), (provider,), DaySettings(route, admission))


def _draw_off(rng: Random, kind: str) -> tuple[str, ...]:
    """N_OFF changes without an effect. Hedges and time-outs act on hangs and on whole answers, too, so that these must be
    absent where they have none.
    """
    names = set(MAY_BE_OFF[kind])
    if kind == "hosted":
        chosen = rng.choice(({"hedge", "timeout", "stream"}, {"timeout", "stream"}, set[str](), set[str]()))
        names -= {"hedge", "timeout"}
        return tuple(sorted(chosen | set(rng.sample(sorted(names - chosen), N_OFF - len(chosen)))))
    return tuple(sorted(rng.sample(sorted(names), N_OFF)))


def draw_day(world: HiddenWorld, seed: int) -> HiddenWorld:
    """Another day of the same world: other requests, as frequent and as long."""
    rng, requests = Random(seed), world.requests
    n = len(requests)
    counts: dict[int, int] = {}
    for one in requests:
        counts[one.content] = counts.get(one.content, 0) + 1
    drawn = []
    for number, like in enumerate(rng.choices(requests, k=n)):
        content = like.content if counts[like.content] > 1 else n + number
        drawn.append(msgspec.structs.replace(like, at_s=requests[number].at_s, content=content))
    return replace(world, requests=tuple(drawn))


def _draw_hosted(rng: Random, off: tuple[str, ...]) -> tuple[ProviderConfig, float]:
    median_s = rng.uniform(0.25, 0.8)
    tail_s = median_s * rng.uniform(4, 7)
    tail = {"tail_share": rng.uniform(0.02, 0.08), "tail_sigma": 0.45,
            "tail_median_s": min(tail_s, LONGEST_TAIL_S) if "timeout" in off else tail_s}
    ttft = Mixture(median_s, 0.01) if "hedge" in off else Mixture(median_s, rng.uniform(0.15, 0.4), **tail)
    faults = () if "timeout" in off else (FaultRule(FaultKind.HANG, rng.uniform(0.015, 0.03)),)
    provider = ProviderConfig(seed=rng.randrange(2**31), ttft=ttft, gaps=GapConfig(rng.uniform(0.006, 0.02), 0.3, 8),
                              prefill_per_token=rng.uniform(1e-4, 4e-4), faults=faults,
                              prompt_cache=PromptCacheModel("automatic", machine_rpm=1_000_000))
    return provider, rng.uniform(2.0, 5.0)


def _draw_engine(rng: Random, off: tuple[str, ...]) -> tuple[ProviderConfig, float]:
    prefill = rng.uniform(8_000, 20_000)
    engine = EngineModel(prefill_tokens_per_s=prefill, decode_step_s=rng.uniform(0.008, 0.016),
                         decode_step_per_sequence_s=rng.uniform(0.0002, 0.0006), decode_share=rng.uniform(0.3, 0.8),
                         kv_tokens=10_000_000, max_running=1000, cache_tokens=10_000_000)
    provider = ProviderConfig(seed=rng.randrange(2**31), ttft=Mixture(rng.uniform(0.03, 0.1), 0.2), engine=engine,
                              gaps=GapConfig(0.01, 0.0, 8))
    mean_prompt = 500 if "prefix" in off else 2000
    return provider, rng.uniform(0.2, 0.45) * prefill / mean_prompt / (4 if "prefix" in off else 1)


def _draw_requests(rng: Random, off: tuple[str, ...], n: int, rate: float, longest: int) -> list[DayRequest]:
    """Arrivals whose rate changes every minute; prompts of two kinds, answers of one."""
    median_tokens, sigma = rng.uniform(300, 700), rng.uniform(0.5, 0.9)
    long_share = 0.0 if longest <= 1000 else rng.uniform(0.1, 0.25)
    median_output, output_sigma = rng.uniform(80, 160), rng.uniform(0.5, 0.8)
    most_output = 190 if "cap" in off else 2000
    stream_share = 1.0 if "stream" in off else rng.uniform(0.6, 0.85)
    repeated_share = 0.0 if "cache" in off else rng.uniform(0.25, 0.45)
    n_questions = rng.randrange(30, 80)
    questions = [(rng.randrange(50, 400), rng.randrange(40, 180)) for _ in range(n_questions)]
    pace = [rng.uniform(0.6, 1.4) for _ in range(10_000)]
    at_s, requests = 0.0, []
    for number in range(n):
        at_s += rng.expovariate(rate * pace[int(at_s / 60) % len(pace)])
        is_stream = rng.random() < stream_share
        if rng.random() < repeated_share:
            question = int(n_questions * rng.random() ** 2)
            requests.append(DayRequest(at_s, *questions[question], is_stream, -1 - question))
            continue
        n_input = rng.randrange(3000, longest) if rng.random() < long_share else min(longest, int(
            rng.lognormvariate(0, sigma) * median_tokens) + 20)
        n_output = min(most_output, int(rng.lognormvariate(0, output_sigma) * median_output) + 2)
        requests.append(DayRequest(at_s, n_input, n_output, is_stream, number))
    return requests


def _alter(world: HiddenWorld, name: str, value: float, rng: Random) -> HiddenWorld:
    route, admission = world.settings.route, world.settings.admission
    provider = world.providers[0]
    if name in _REQUESTS:
        return replace(world, requests=tuple(_REQUESTS[name](one, value) for one in world.requests))
    match name:
        case "cache":
            return replace(world, settings=DaySettings(replace(route, cache=CacheConfig("exact")), admission))
        case "hits":
            return replace(world, requests=_repeat(world.requests, value, rng),
                           settings=DaySettings(replace(route, cache=CacheConfig("exact")), admission))
        case "lane":
            return replace(world, settings=DaySettings(route, replace(admission, lanes=LanesConfig(int(value)))))
        case "hedge":
            return replace(world, settings=DaySettings(replace(route, hedge=HedgeConfig()), admission))
        case "timeout":
            limited = replace(route, timeouts=replace(route.timeouts, first_token_s=value))
            return replace(world, settings=DaySettings(limited, admission))
        case "replica":
            return replace(world, providers=(provider, replace(provider, seed=provider.seed + 1)))
    return replace(world, providers=(_speed_up(provider, name, value),))


def _speed_up(provider: ProviderConfig, name: str, value: float) -> ProviderConfig:
    factor = {"machine": 1 / (1 - value), "quantise": value, "speculate": SPECULATION_SPEED}[name]
    numbers, engine = provider.numbers, provider.engine
    if engine is not None:
        prefill = engine.prefill_tokens_per_s * (1 if name == "speculate" else factor)
        engine = replace(engine, prefill_tokens_per_s=prefill, decode_step_s=engine.decode_step_s / factor,
                         decode_step_per_sequence_s=engine.decode_step_per_sequence_s / factor)
    ttft = numbers.ttft if name == "speculate" else numbers.ttft.scale(1 / factor)
    return replace(provider, engine=engine, ttft=ttft, gaps=replace(numbers.gaps, median_s=numbers.gaps.median_s / factor))


def _repeat(requests: tuple[DayRequest, ...], share: float, rng: Random) -> tuple[DayRequest, ...]:
    """Of a world without a cache: a share of the requests repeats an earlier one, and no other does."""
    changed: list[DayRequest] = []
    for number, one in enumerate(requests):
        if number and rng.random() < share:
            like = changed[rng.randrange(number)]
            changed.append(msgspec.structs.replace(like, at_s=one.at_s, is_stream=one.is_stream))
        else:
            changed.append(msgspec.structs.replace(one, content=number))
    return tuple(changed)


_REQUESTS: Final = {
    "stream": lambda one, value: msgspec.structs.replace(one, is_stream=True),
    "prefix": lambda one, value: msgspec.structs.replace(one, n_shared=int(value * one.n_input) * (one.n_input >= 1024)),
    "diet": lambda one, value: msgspec.structs.replace(one, n_input=max(1, int(one.n_input * (1 - value)))),
    "cap": lambda one, value: msgspec.structs.replace(one, n_output=min(one.n_output, int(value))),
    "load2": lambda one, value: msgspec.structs.replace(one, at_s=one.at_s / value),
}


class LineCollector(LineWriter):
    """Collects log lines in memory; needs no thread."""

    def __init__(self) -> None:
        super().__init__(LogConfig())
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)


async def _run_day(loop: SimLoop, world: HiddenWorld, seed: int) -> list[bytes]:
    collector = LineCollector()
    names = [f"provider{number or ''}" for number in range(len(world.providers))]
    upstreams = {name: SimulatedUpstream(provider=seed_provider(provider, seed), probe=False, prices={"*": PRICE},
                                         limit=_LIMIT) for name, provider in zip(names, world.providers, strict=True)}
    settings = Settings(upstreams=upstreams, routes={ROUTE: replace(world.settings.route, upstreams=tuple(names))},
                        admission=world.settings.admission, log=LogSettings(level="error", requests=False))
    sink = LogSink(LogConfig(), collector, loop)
    gateway = system_with_sink(settings, sink, loop, Random(seed)).gateway
    began_at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(world.requests):
            if (wait_s := began_at + request.at_s - loop.now()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(_send(gateway, f"req_{number:x}", request, loop))
    return collector.lines


async def _send(gateway: Gateway, request_id: str, request: DayRequest, loop: SimLoop) -> None:
    shared = _WORD * request.n_shared
    n_own = max(3, request.n_input - request.n_shared)
    digits = f"{request.content:09d}".replace("-", "q") * (n_own // 3 + 1)
    words = " ".join(digits[at:at + 3] for at in range(0, 3 * n_own, 3))
    body = {"model": ROUTE, "messages": [{"role": "user", "content": shared + words}], "temperature": 0,
            "min_tokens": request.n_output, "max_tokens": MOST_OUTPUT}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if request.is_stream else {}
    try:
        reply = await gateway.serve(decode(Api.CHAT, _ENCODE(body)), Arrival(request_id, loop.now()))
        try:
            while await reply.next() is not None:
                pass
        finally:
            reply.close()
    except StayfastError:
        return  # the log line holds the reason
