"""What could be changed, and how each change alters the replayed day.

Each change states where its size comes from. "Assumed" figures are those of published experience, and may be given another
value: `--change quantise=1.3`. Effort classes, in days of an engineer:

    setting  0.1   a line of the gateway's settings
    client   0.5   the client's request, in one place
    prompt   3     prompts are rewritten, and answers judged again
    machine  1     another machine or replica is ordered and started
    model    5     another model or precision, whose answers are judged again
    engine   10    a second model is chosen, served and tuned

Groups are in the order in which they usually pay off: streaming and prompt caches need little work and no other model;
quantised weights come before more machines; speculative decoding comes last, as it needs a second model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from random import Random
from typing import Final

import msgspec

from stayfast.lab.plan.replay import TrafficScenario
from stayfast.lab.plan.replayed import ReplayCall
from stayfast.lab.plan.workload import TrafficModel
from stayfast.policy.admission.lanes import LEAST_PLACES, LanesConfig
from stayfast.policy.admission.price import Price

EFFORT_DAYS: Final = {"setting": 0.1, "client": 0.5, "prompt": 3.0, "machine": 1.0, "model": 5.0, "engine": 10.0}
GROUPS: Final = ("streaming", "prompt cache", "answer cache", "quantise", "batching and capacity", "speculative decoding",
                 "smaller model", "prompt diet", "tail", "load")
LEAST_REPEATED: Final = 0.02  # of the requests; below it, a hit rate is a wish
LEAST_CACHED_TOKENS: Final = 1024  # providers cache no shorter prompt
NO_LENGTHS: Final = "most answers have no token counts"
CACHE_STEP_TOKENS: Final = 128
TIER_SPEED, TIER_PRICE = 2.5, 0.2
BATCH_PRICE = 0.5
_SPECULATION: Final = ((0.0, 0.75), (0.3, 0.83), (0.5, 1.0), (0.7, 1.5), (0.8, 2.0), (1.0, 2.5))  # acceptance, decode speed
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """One change. value: its default; None: it has none. applies: why it is no question here; empty: it is one.

    is_question: it is not done to improve anything, such as more load. is_load: its effect is that of load on the upstream.
    """

    name: str
    title: str  # with {} for the value
    group: str
    effort: str
    value: float
    source: str  # of its size
    apply: Callable[[TrafficModel, TrafficScenario, float], TrafficScenario]
    refuses: Callable[[TrafficModel], str] = lambda model: ""
    is_question: bool = False
    is_percent: bool = False
    is_load: bool = False

    def describe(self, value: float) -> str:
        return self.title.format(f"{value:.0%}" if self.is_percent else f"{value:g}")


def _map_calls(scenario: TrafficScenario, alter: Callable[[ReplayCall], ReplayCall]) -> TrafficScenario:
    return scenario.with_calls([alter(call) for call in scenario.calls])


def _chosen(call: ReplayCall, share: float, purpose: int) -> bool:
    """Whether this request is in a random share, the same one in every run and for every smaller share."""
    return Random(call.luck * 31 + purpose).random() < share


def _stream(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return _map_calls(scenario, lambda call: call if call.is_stream or not _chosen(call, value, 1)
                      else msgspec.structs.replace(call, is_stream=True))


def _fix_prefix(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    def cache(call: ReplayCall) -> ReplayCall:
        n_cached = int(value * call.n_input) // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
        has_more = n_cached >= max(LEAST_CACHED_TOKENS, call.n_cached)
        return msgspec.structs.replace(call, n_cached=n_cached) if has_more else call

    return _map_calls(scenario, cache)


def _cache_answers(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    """The exact cache on, for the bodies that repeat."""
    return replace(scenario, route=replace(scenario.route, cache=replace(scenario.route.cache, mode="exact")))


def _raise_hits(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    """Further requests repeat an earlier one, until `value` of all are answered by the cache."""
    seen: dict[tuple[str, int], int] = {}
    for call in scenario.calls:
        seen[call.tenant, call.content] = seen.get((call.tenant, call.content), 0) + 1
    n = len(scenario.calls)
    has_hits = scenario.route.cache.mode != "off"
    hit_ratio = 1 - len(seen) / n if has_hits else 0.0
    share = max(0.0, (value - hit_ratio) / max(1e-9, 1 - hit_ratio))
    calls: list[ReplayCall] = []
    for number, call in enumerate(scenario.calls):
        is_first = seen[call.tenant, call.content] == 1 or not has_hits
        content = call.content if has_hits else number
        if number and is_first and _chosen(call, share, 2):
            like = calls[Random(call.luck).randrange(number)]
            calls.append(msgspec.structs.replace(like, at_s=call.at_s, is_stream=call.is_stream, luck=call.luck))
        else:
            calls.append(msgspec.structs.replace(call, content=content))
    return _cache_answers(model, scenario.with_calls(calls), value)


def _shorten(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return _map_calls(scenario, lambda call: msgspec.structs.replace(
        call, n_input=max(1, int(call.n_input * (1 - value))), n_cached=int(call.n_cached * (1 - value))))


def _compact(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    most = int(value)
    return _map_calls(scenario, lambda call: call if call.n_input <= most else msgspec.structs.replace(
        call, n_input=most, n_cached=min(call.n_cached, most)))


def _cap(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    most = int(value)
    return _map_calls(scenario, lambda call: call if call.n_output <= most
                      else msgspec.structs.replace(call, n_output=most))


def _quantise(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return replace(scenario, fits={name: fit.speed_up(value) for name, fit in scenario.fits.items()})


def _buy_machine(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return replace(scenario, fits={name: fit.speed_up(1 / (1 - value)) for name, fit in scenario.fits.items()})


def _add_replicas(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    name, fit = next(iter(scenario.fits.items()))
    fits, prices, limits = dict(scenario.fits), dict(scenario.prices), dict(scenario.limits)
    n_before = len(fits)
    for number in range(int(value)):
        more = f"{name}+{number + 1}"
        fits[more] = replace(fit, name=more)
        prices |= {more: prices[name]} if name in prices else {}
        limits |= {more: limits[name]} if name in limits else {}
    return replace(scenario, fits=fits, prices=prices, limits=limits, route=replace(scenario.route, upstreams=tuple(fits)),
                   machine_usd_per_h=scenario.machine_usd_per_h * len(fits) / n_before)


def _speculate(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    points = _SPECULATION
    (low, slow), (high, quick) = next(pair for pair in pairwise(points) if value <= pair[1][0])
    speed = slow + (quick - slow) * (value - low) / (high - low)
    return replace(scenario, fits={name: fit.speed_up_decode(speed) for name, fit in scenario.fits.items()})


def _use_tier(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    """A share of requests goes to a smaller model, whose speed and price are assumed."""
    name, fit = next(iter(scenario.fits.items()))
    small = replace(fit.speed_up(TIER_SPEED), name="smaller")
    price = scenario.prices.get(name)
    prices = dict(scenario.prices) | ({"smaller": Price(
        price.input_per_mtok * TIER_PRICE, price.output_per_mtok * TIER_PRICE,
        None if price.cached_read_per_mtok is None else price.cached_read_per_mtok * TIER_PRICE)} if price else {})
    weights = {name: (1 - value) / len(scenario.fits) for name in scenario.fits} | {"smaller": max(0.001, value)}
    return replace(scenario, fits=dict(scenario.fits) | {"smaller": small}, prices=prices, route=replace(
        scenario.route, upstreams=(*scenario.route.upstreams, "smaller"), weights=weights))


def _hedge(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    hedge = scenario.route.hedge
    hedge = replace(hedge, mode="off") if value <= 0 else replace(hedge, mode="auto", budget="auto" if value >= 1 else value)
    return replace(scenario, route=replace(scenario.route, hedge=hedge))


def _add_lane(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    lanes = scenario.admission.lanes or LanesConfig()
    return replace(scenario, admission=replace(scenario.admission, lanes=replace(lanes, long_input_tokens=int(value))))


def _limit_first_token(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return replace(scenario, route=replace(scenario.route, timeouts=replace(scenario.route.timeouts, first_token_s=value)))


def _retry(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return replace(scenario, route=replace(scenario.route, retry=replace(scenario.route.retry, max_attempts=int(value))))


def _move_to_batch(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    """A share of the requests that are not streamed runs when nothing else does, at batch prices."""
    return scenario.with_calls([call for call in scenario.calls if call.is_stream or not _chosen(call, value, 3)])


def _load(model: TrafficModel, scenario: TrafficScenario, value: float) -> TrafficScenario:
    return _map_calls(scenario, lambda call: msgspec.structs.replace(call, at_s=call.at_s / value))


def _needs_engine(model: TrafficModel) -> str:
    if model.has_engine or model.unclear_load:
        return ""
    return "no upstream slows down with your load: a hosted API, where this is the provider's"


def _needs_whole(model: TrafficModel) -> str:
    return "" if model.streamed_share < 1 else "all requests are streamed"


def _needs_marks(model: TrafficModel) -> str:
    if model.scenario.route.cache.mode != "off":
        return "the cache is on"
    return "" if model.repeated_ratio is not None else "the log has no marks of equal requests"


def _needs_repeats(model: TrafficModel) -> str:
    ratio = model.repeated_ratio
    if ratio is None or ratio >= LEAST_REPEATED:
        return ""
    return f"{ratio:.1%} of the requests repeat an earlier body; --change hits=40% predicts it nevertheless"


def _needs_places(model: TrafficModel) -> str:
    most = model.scenario.admission.max_in_flight
    if model.scenario.admission.lanes is not None:
        return "lanes are on"
    return "" if most is not None and most >= LEAST_PLACES else "admission.max_in_flight is not set, so nothing queues here"


def _needs_faults(model: TrafficModel) -> str:
    has_faults = any(fit.fail_share or fit.hang_share for fit in model.scenario.fits.values())
    return "" if has_faults else "no attempt failed"


def _needs_hangs(model: TrafficModel) -> str:
    return "" if any(fit.hang_share for fit in model.scenario.fits.values()) else "no attempt ran into a time-out"


def _needs_hedge(model: TrafficModel) -> str:
    return "" if model.scenario.route.hedge.mode == "off" else "hedging is on"


def _needs_no_hedge(model: TrafficModel) -> str:
    return "hedging is off" if model.scenario.route.hedge.mode == "off" else ""


def _needs_lengths(model: TrafficModel) -> str:
    return "" if model.traffic.has_lengths else NO_LENGTHS


def _needs_uncached(model: TrafficModel) -> str:
    if not model.traffic.has_lengths:
        return NO_LENGTHS
    share = sum((row.n_input or 0) >= LEAST_CACHED_TOKENS for row in model.traffic.rows) / len(model.traffic.rows)
    if share < 0.01:
        return f"prompts are shorter than {LEAST_CACHED_TOKENS} tokens, which providers do not cache"
    return "" if model.cached_ratio < 0.75 else f"{model.cached_ratio:.0%} of the input is cached"


CHANGES: Final[tuple[Change, ...]] = (
    Change("stream", "stream {} of the answers that are whole today", "streaming", "client", 1.0, "exact", _stream,
           _needs_whole, is_percent=True),
    Change("prefix", "provider's prompt cache fixed: {} of long prompts cached", "prompt cache", "prompt", 0.8,
           "assumed share", _fix_prefix, _needs_uncached, is_percent=True),
    Change("cache", "exact answer cache on", "answer cache", "setting", 1.0, "repeats in the log", _cache_answers,
           _needs_marks),
    Change("hits", "answer cache hit rate {}", "answer cache", "prompt", 0.4, "assumed share", _raise_hits,
           _needs_repeats, is_percent=True),
    Change("quantise", "int8 or fp8 weights, {} times as fast", "quantise", "model", 1.5, "assumed speed", _quantise,
           _needs_engine),
    Change("replica", "{} more replica", "batching and capacity", "machine", 1.0, "exact", _add_replicas, _needs_engine,
           is_load=True),
    Change("machine", "bigger machine, {} less latency", "batching and capacity", "machine", 0.4, "A100 to H100, assumed",
           _buy_machine, _needs_engine, is_percent=True),
    Change("lane", "a lane for prompts over {} tokens", "batching and capacity", "setting", 4000.0, "exact", _add_lane,
           _needs_places),
    Change("batch", "{} of the answers that are not streamed in a batch off-peak", "batching and capacity", "client", 0.5,
           "assumed share", _move_to_batch, _needs_whole, is_percent=True),
    Change("speculate", "speculative decoding, acceptance {}", "speculative decoding", "engine", 0.7,
           "1.5 times at 0.7, slower below 0.5", _speculate, _needs_engine),
    Change("tier", "{} of requests to a smaller model", "smaller model", "model", 0.5,
           f"assumed: {TIER_SPEED:g} times as fast at {TIER_PRICE:.0%} of the price", _use_tier, is_percent=True),
    Change("diet", "prompts {} shorter", "prompt diet", "prompt", 0.3, "exact", _shorten, _needs_lengths, is_percent=True),
    Change("compact", "prompts of at most {} tokens", "prompt diet", "prompt", 4000.0, "exact", _compact,
           _needs_lengths),
    Change("cap", "answers of at most {} tokens", "prompt diet", "client", 512.0, "exact", _cap, _needs_lengths),
    Change("hedge", "hedging on", "tail", "setting", 1.0, "exact", _hedge, _needs_hedge),
    Change("unhedge", "hedging off", "tail", "setting", 0.0, "exact", _hedge, _needs_no_hedge),
    Change("timeout", "first-token time-out {} s", "tail", "setting", 5.0, "exact", _limit_first_token, _needs_hangs),
    Change("retry", "{} attempts", "tail", "setting", 3.0, "exact", _retry, _needs_faults),
    Change("load2", "load times {}", "load", "setting", 2.0, "effects beyond the seen load are extrapolated", _load,
           is_question=True, is_load=True),
    Change("load5", "load times {}", "load", "setting", 5.0, "effects beyond the seen load are extrapolated", _load,
           is_question=True, is_load=True),
)
BY_NAME: Final = {change.name: change for change in CHANGES}


def parse_changes(words: Sequence[str]) -> list[tuple[Change, float]]:
    """Read NAME or NAME=VALUE, VALUE a number or a percentage. Raises ValueError."""
    parsed = []
    for word in words:
        name, _, text = word.partition("=")
        if name not in BY_NAME:
            raise ValueError(f"unknown change {name!r}; available: {', '.join(BY_NAME)}")
        change = BY_NAME[name]
        try:
            value = change.value if not text else float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ValueError(f"{word}: the value must be a number, such as {name}={change.value:g}") from None
        limit = 0.95 if change.is_percent and name not in ("stream", "batch") else 1.0 if change.is_percent else inf
        if not 0 <= value <= min(limit, _MANY) or (value == 0 and name != "hedge") or (name == "speculate" and value > 1):
            raise ValueError(f"{word}: the value is out of range; the default is {name}={change.value:g}")
        parsed.append((change, value))
    return parsed


def default_changes(model: TrafficModel) -> tuple[list[tuple[Change, float]], list[tuple[Change, str]]]:
    """The changes that are a question here, and the others with the reason."""
    candidates, left = [], []
    for change in CHANGES:
        why = change.refuses(model)
        if why:
            left.append((change, why))
        else:
            candidates.append((change, change.value))
    return candidates, left
