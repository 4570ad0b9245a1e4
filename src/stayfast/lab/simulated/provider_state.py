"""What all requests of a simulated provider share (weather, capacity, faults, counts), and what it knows of each."""

import asyncio
from collections.abc import Callable
from math import sqrt
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.types import Api
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.engine import Sequence, engine_of
from stayfast.lab.simulated.faults import CALM, FaultRule, Forecast, Regime, Regimes, RegimeState
from stayfast.lab.simulated.prompt_cache import CacheLookup, CacheRules, PromptCache
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.lab.simulated.timing_plan import Dice
from stayfast.lab.simulated.vendor import (
    RATE_LIMITED,
    Charge,
    Headers,
    VendorError,
    VendorLimit,
    VendorMeter,
    limit_headers,
    over_limit,
    overloaded,
    own_headers,
    trouble,
    used_up,
)


class CallState:
    """One request at a provider. Changed by the provider and by what answers the request, on one loop."""

    __slots__ = ("ask", "charge", "ended_at", "n_after_hangup", "n_generated", "number", "outcome", "received_at",
                 "remembers", "request_id", "sequence")

    def __init__(self, ask: SimulatedRequest, number: int, request_id: str, received_at: float) -> None:
        self.ask = ask
        self.number = number
        self.request_id = request_id  # what the provider calls it, in headers and errors
        self.received_at = received_at
        self.ended_at: float | None = None
        self.outcome: str | None = None  # None: running
        self.n_generated = 0  # tokens of all choices, told when it is over
        self.n_after_hangup = 0  # of those, the ones that came into being after the caller had gone
        self.charge: Charge | None = None  # what the quota was charged in advance
        self.remembers: CacheLookup | None = None  # what its prompt leaves in the provider's cache
        self.sequence: Sequence | None = None  # its place in the engine


class ProviderCounts(msgspec.Struct):
    """Since the start or the last reset. Instants are the clock's seconds; costs US dollars by the provider's prices.
    outcomes: completed, cancelled (the caller left), status_429 and the like, or the kind of fault that ended it."""

    n_asked: int = 0
    n_running: int = 0  # those that run on for nobody included
    n_running_peak: int = 0
    outcomes: dict[str, int] = {}
    n_tokens_prompted: int = 0  # of requests that were admitted
    n_tokens_cached: int = 0  # of those, read from the cache of prompts
    n_tokens_written: int = 0  # and written to it
    n_tokens_generated: int = 0
    n_tokens_unread: int = 0  # of those, generated for answers whose callers left before the end
    n_tokens_after_hangup: int = 0  # of those, generated after the caller had gone
    cost_usd: float = 0.0
    cost_unread_usd: float = 0.0
    n_cold_starts: int = 0
    first_at: float | None = None
    last_at: float | None = None

    @property
    def n_cancelled(self) -> int:
        return self.outcomes.get("cancelled", 0)


BAD_REQUEST: Final = 400  # HTTP's
NOTHING_KEPT: Final = CacheLookup()


class ProviderState:
    """What all requests of one provider share. One loop; its life begins when it is made. It waits by asyncio on the running
    loop, takes instants from `clock` and dice from the request's number, so a run repeats exactly: on a real loop up to the
    machine's own delays, on a virtual one bit for bit."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        self.name = name
        self.config = config
        self.numbers = config.numbers
        self.clock = clock
        self.dice = Dice(config.seed, name)
        self.tag = f"{crc32(name.encode()):08x}"
        self.counts = ProviderCounts()
        self.engine = engine_of(config.engine, clock) if config.engine is not None else None
        self.prompt_cache = PromptCache(config.prompt_cache, clock) if config.prompt_cache is not None else None
        self._began_at = clock.now()
        self._rules: list[_Rule] = [_Rule(rule) for rule in config.faults]
        self._regimes = config.regimes or Regimes()
        self._forecast = Forecast(self._regimes, self.dice.of_weather()) if config.regimes is not None else None
        self._forced: RegimeState | None = None
        self._meter = VendorMeter(config.quota, self._began_at) if config.quota is not None else None
        self._active_at: float | None = None  # when it last had anything to do
        self._warm_at = self._began_at

    @property
    def caches_prompts(self) -> bool:
        """Whether its engine wants to know what prompts begin with."""
        return self.config.engine is not None and self.config.engine.cache_tokens > 0

    @property
    def cache_rules(self) -> CacheRules | None:
        """By which it remembers prompts itself."""
        return self.config.prompt_cache.rules if self.config.prompt_cache is not None else None

    @property
    def age_s(self) -> float:
        """Seconds since its life began: what fault schedules and regimes go by."""
        return self.clock.now() - self._began_at

    @property
    def faults(self) -> list[FaultRule]:
        """The rules in force, those of the configuration first."""
        return [rule.of for rule in self._rules]

    @property
    def weather(self) -> RegimeState:
        return self._weather_at(self.clock.now())

    def inject(self, rule: FaultRule) -> None:
        """Add a rule, for requests that begin from now on. Its from_s and until_s count from now."""
        self._rules.append(_Rule(rule, self.age_s))

    def clear(self) -> None:
        """Drop the rules that were injected; requests already struck stay so."""
        del self._rules[len(self.config.faults):]

    def set_regime(self, weather: RegimeState | None) -> None:
        """Hold the weather as it is told from now on; None: as the configuration has it."""
        self._forced = weather

    def reset_counts(self) -> None:
        """Count from 0 again. What runs is counted where it ends."""
        self.counts = ProviderCounts(n_running=self.counts.n_running, n_running_peak=self.counts.n_running)

    # -- what its answerings ask of it

    def fault_for(self, api: Api, number: int, now: float) -> FaultRule | None:
        if not self._rules:
            return None
        age_s = now - self._began_at
        rng = self.dice.of_faults(number)
        return next((rule.of for rule in self._rules if rule.strikes(api, age_s, rng)), None)

    def regime_at(self, now: float) -> Regime:
        """What holds for a request that begins now."""
        if self._forecast is None and self._forced is None:
            return CALM
        regime = self._regimes.of(self._weather_at(now))
        if self.engine is not None:
            self.engine.set_speed(1 / regime.gap_factor)
        return regime

    def _weather_at(self, now: float) -> RegimeState:
        if self._forced is not None:
            return self._forced
        return self._forecast.at(now - self._began_at) if self._forecast is not None else RegimeState.NORMAL

    def admit(self, call: CallState, regime: Regime, now: float) -> VendorError | None:
        """Let a request in, charged to the quota; or the error it gets instead."""
        ask = call.ask
        if regime.error_rate and self.dice.of_errors(call.number).random() < regime.error_rate:
            return overloaded(self.numbers.vendor, ask.api)
        if ask.prompt is not None and ask.prompt.fault:
            return trouble(BAD_REQUEST)._replace(message=ask.prompt.fault, text=ask.prompt.fault)
        found = NOTHING_KEPT
        if self.prompt_cache is not None and ask.prompt is not None:
            found = self.prompt_cache.look_up(ask.prompt, ask.n_prompt_tokens)
        if self._meter is not None:
            most = ask.max_output_tokens if ask.api.can_stream else 0
            n_charged = ask.n_prompt_tokens - (found.n_read if self.numbers.vendor == "anthropic" else 0)
            charged = self._meter.admit(n_charged, most, ask.model, now)
            if isinstance(charged, VendorError):
                return charged
            call.charge = charged
        if ask.prompt is not None:
            call.remembers = found
            call.ask = msgspec.structs.replace(ask, n_cached_tokens=found.n_read, n_written_tokens=found.n_written,
                                                    n_written_1h_tokens=found.n_written_1h)
        counts, cache, n_prompt = self.counts, self.config.prompt_cache, ask.n_prompt_tokens
        counts.n_tokens_prompted += n_prompt
        counts.n_tokens_cached += found.n_read
        counts.n_tokens_written += found.n_written + found.n_written_1h
        counts.cost_usd += self.config.tariff.usd(cache.plain_tokens(n_prompt, found) if cache is not None else n_prompt, 0)
        return None

    def luck_of(self, session: str | None, now: float, rng: Random) -> float | None:
        """The luck that a session's requests share, where this one does. Each takes it with probability sqrt(rho), so two of
        one session are both in the tail with correlation rho."""
        rho = self.config.tail_correlation
        if session is None or not rho or rng.random() >= sqrt(rho):
            return None
        window = int((now - self._began_at) / self.config.tail_redraw_s)
        return self.dice.of_session(session, window).random()

    def warm_at(self, now: float) -> float:
        """When it can begin to work: now, or at the end of a cold start."""
        cold = self.config.cold_start
        if cold is None:
            return now
        was = self._active_at
        is_cold = cold.starts_cold if was is None else (self.counts.n_running <= 1 and now - was >= cold.after_idle_s)
        if is_cold:
            rng = self.dice.of_cold_start(self.counts.n_cold_starts)
            self._warm_at = now + (rng.uniform(cold.container_min_s, cold.container_max_s)
                                   + rng.uniform(cold.load_min_s, cold.load_max_s))
            self.counts.n_cold_starts += 1
        self._active_at = now
        return max(now, self._warm_at)

    def limits(self) -> list[VendorLimit]:
        return self._meter.limits(self.clock.now()) if self._meter is not None else []

    def injected(self, fault: FaultRule, ask: SimulatedRequest) -> tuple[VendorError, list[VendorLimit]]:
        """The error that a rule asks for, and the limits beside it: where they are the reason, the first is used up."""
        limits, again_s = self.limits(), fault.retry_after_s
        if fault.status != RATE_LIMITED or fault.code not in ("", "rate_limit_exceeded"):
            return trouble(fault.status, fault.code, again_s), limits
        limits = used_up(limits, again_s)
        return over_limit(limits[0], 1, ask.model, again_s), limits

    def headers(self, call: CallState, limits: list[VendorLimit] | None = None) -> Headers:
        """What stands over every answer: the provider's own headers, and the limits (None: as they are)."""
        own = own_headers(self.numbers.vendor, call.request_id, self.clock.now() - call.received_at)
        if limits is None:
            limits = self.limits()
        return own + limit_headers(limits, self.numbers.vendor, self.clock.wall()) if limits else own

    def at(self, instant: float, act: Callable[[], None]) -> None:
        """Act at an instant of its clock; at once if that has passed."""
        delay_s = instant - self.clock.now()
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, act)
        else:
            act()

    def ended(self, call: CallState) -> None:
        """A request is over: count it, and free what it held."""
        assert call.outcome is not None
        assert call.ended_at is not None
        counts, n_output = self.counts, call.n_generated
        counts.n_running -= 1
        counts.last_at = self._active_at = call.ended_at
        counts.outcomes[call.outcome] = counts.outcomes.get(call.outcome, 0) + 1
        counts.n_tokens_generated += n_output
        cost_usd = self.config.tariff.usd(0, n_output)
        counts.cost_usd += cost_usd
        if call.outcome == "cancelled":
            counts.n_tokens_unread += n_output
            counts.n_tokens_after_hangup += call.n_after_hangup
            counts.cost_unread_usd += cost_usd
        if call.charge is not None:
            call.charge.settle(n_output, call.ended_at)
        if call.sequence is not None and self.engine is not None:
            self.engine.leave(call.sequence)

    def __repr__(self) -> str:
        counts = self.counts
        return f"<Provider {self.name}: {counts.n_running} running, {counts.n_asked} asked, {self.weather.value}>"


class _Rule:
    """A fault rule in force, and how often it has struck."""

    __slots__ = ("_from_s", "n_struck", "of")

    def __init__(self, of: FaultRule, from_s: float = 0.0) -> None:
        self.of = of
        self.n_struck = 0
        self._from_s = from_s  # of the provider's life: its schedule counts from here

    def strikes(self, api: Api, age_s: float, rng: Random) -> bool:
        """Whether a request is struck; throws the same number of dice whatever the answer."""
        of = self.of
        is_drawn = rng.random() < of.rate
        if not is_drawn or not of.covers(api, age_s - self._from_s):
            return False
        if of.max_count is not None and self.n_struck >= of.max_count:
            return False
        self.n_struck += 1
        return True
