"""The state shared by all calls of a simulated provider (regime, capacity, faults, counts), and that of one call."""

import asyncio
from collections.abc import Callable
from math import sqrt
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.types import Api
from stayfast.lab.simulated.config import Preset, ProviderConfig
from stayfast.lab.simulated.engine import Sequence, create_engine
from stayfast.lab.simulated.faults import CALM, FaultRule, Regime, Regimes, RegimeState, RegimeTimeline
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
    error_for_status,
    exhaust_first_limit,
    limit_headers,
    overloaded_error,
    rate_limit_error,
    vendor_headers,
)


class CallState:
    """One call to a provider. Single loop."""

    __slots__ = ("cache_lookup", "charge", "ended_at", "n_after_hangup", "n_generated", "number", "outcome", "received_at",
                 "request", "request_id", "sequence")

    def __init__(self, request: SimulatedRequest, number: int, request_id: str, received_at: float) -> None:
        self.request = request
        self.number = number
        self.request_id = request_id  # the provider's own id, in headers and errors
        self.received_at = received_at
        self.ended_at: float | None = None
        self.outcome: str | None = None  # None: running
        self.n_generated = 0  # tokens of all choices; 0 until the end
        self.n_after_hangup = 0  # of those, generated after the client disconnected
        self.charge: Charge | None = None  # of the quota, in advance
        self.cache_lookup: CacheLookup | None = None  # of its prompt, in the provider's prompt cache
        self.sequence: Sequence | None = None  # in the engine


class ProviderCounts(msgspec.Struct):
    """Counts since the start or the last reset. Instants are seconds of the clock; costs US dollars by the tariff.
    `outcomes`: completed, cancelled (the client disconnected), status_429 and the like, or the kind of a fault.
    """

    n_asked: int = 0
    n_running: int = 0  # including calls whose client has disconnected
    n_running_peak: int = 0
    outcomes: dict[str, int] = {}
    n_tokens_prompted: int = 0  # of admitted requests
    n_tokens_cached: int = 0  # of those, read from the prompt cache
    n_tokens_written: int = 0  # of those, written to it
    n_tokens_generated: int = 0
    n_tokens_unread: int = 0  # of those, for clients that disconnected before the end
    n_tokens_after_hangup: int = 0  # of those, generated after the client disconnected
    cost_usd: float = 0.0
    cost_unread_usd: float = 0.0
    n_cold_starts: int = 0
    first_at: float | None = None
    last_at: float | None = None

    @property
    def n_cancelled(self) -> int:
        return self.outcomes.get("cancelled", 0)


BAD_REQUEST: Final = 400  # HTTP's
NO_LOOKUP: Final = CacheLookup()


class ProviderState:
    """The shared state of one provider. It waits by asyncio, takes instants from `clock` and random numbers from
    the seed and the request's number. So a run is reproducible: on a virtual loop exactly, on a real one up to the delays of
    the machine.
    """

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        self.name = name
        self.config = config
        self.numbers = config.numbers
        self.clock = clock
        self.dice = Dice(config.seed, name)
        self.tag = f"{crc32(name.encode()):08x}"
        self.counts = ProviderCounts()
        self.engine = create_engine(config.engine, clock) if config.engine is not None else None
        self.prompt_cache = PromptCache(config.prompt_cache, clock) if config.prompt_cache is not None else None
        self._began_at = clock.now()
        self._rules: list[_ActiveRule] = [_ActiveRule(rule) for rule in config.faults]
        self._regimes = config.regimes or Regimes()
        self._forecast = RegimeTimeline(self._regimes, self.dice.for_regimes()) if config.regimes is not None else None
        self._forced: RegimeState | None = None
        self._meter = VendorMeter(config.quota, self._began_at) if config.quota is not None else None
        self._active_at: float | None = None  # when it was last busy
        self._warm_at = self._began_at

    def numbers_of(self, model: str) -> Preset:
        """The figures of one model."""
        return self.config.numbers_of(model) if self.config.by_model else self.numbers

    @property
    def caches_prompts(self) -> bool:
        """Whether its engine caches prompt prefixes."""
        return self.config.engine is not None and self.config.engine.cache_tokens > 0

    @property
    def cache_rules(self) -> CacheRules | None:
        """The rules of its prompt cache, if any."""
        return self.config.prompt_cache.rules if self.config.prompt_cache is not None else None

    @property
    def age_s(self) -> float:
        """Seconds since its creation: the time axis of fault schedules and regimes."""
        return self.clock.now() - self._began_at

    @property
    def faults(self) -> list[FaultRule]:
        """The active rules, those of the configuration first."""
        return [rule.rule for rule in self._rules]

    @property
    def regime_state(self) -> RegimeState:
        return self._state_at(self.clock.now())

    def add_fault(self, rule: FaultRule) -> None:
        """Add a rule for requests from now on. Its from_s and until_s count from now."""
        self._rules.append(_ActiveRule(rule, self.age_s))

    def clear_faults(self) -> None:
        """Remove the injected rules; calls with a fault keep it."""
        del self._rules[len(self.config.faults):]

    def set_regime(self, state: RegimeState | None) -> None:
        """Hold a regime from now on; None: back to the configuration."""
        self._forced = state

    def reset_counts(self) -> None:
        """Restart all counts at 0. A running call is counted when it ends."""
        self.counts = ProviderCounts(n_running=self.counts.n_running, n_running_peak=self.counts.n_running)

    def fault_for(self, api: Api, number: int, now: float) -> FaultRule | None:
        if not self._rules:
            return None
        age_s = now - self._began_at
        rng = self.dice.for_faults(number)
        return next((rule.rule for rule in self._rules if rule.strike(api, age_s, rng)), None)

    def regime_at(self, now: float) -> Regime:
        """The regime of a request that starts now."""
        if self._forecast is None and self._forced is None:
            return CALM
        regime = self._regimes.regime_of(self._state_at(now))
        if self.engine is not None:
            self.engine.set_speed(1 / regime.gap_factor)
        return regime

    def _state_at(self, now: float) -> RegimeState:
        if self._forced is not None:
            return self._forced
        return self._forecast.state_at(now - self._began_at) if self._forecast is not None else RegimeState.NORMAL

    def admit(self, call: CallState, regime: Regime, now: float) -> VendorError | None:
        """Admit a request and charge the quota, or return the error to answer."""
        request = call.request
        if regime.error_rate and self.dice.for_errors(call.number).random() < regime.error_rate:
            return overloaded_error(self.numbers.vendor, request.api)
        if request.prompt is not None and request.prompt.fault:
            return error_for_status(BAD_REQUEST)._replace(message=request.prompt.fault, text=request.prompt.fault)
        lookup = NO_LOOKUP
        if self.prompt_cache is not None and request.prompt is not None:
            lookup = self.prompt_cache.find_prefix(request.prompt, request.n_prompt_tokens)
        if self._meter is not None:
            most = request.max_output_tokens if request.api.can_stream else 0
            n_charged = request.n_prompt_tokens - (lookup.n_read if self.numbers.vendor == "anthropic" else 0)
            charged = self._meter.charge(n_charged, most, request.model, now)
            if isinstance(charged, VendorError):
                return charged
            call.charge = charged
        if request.prompt is not None:
            call.cache_lookup = lookup
            call.request = msgspec.structs.replace(request, n_cached_tokens=lookup.n_read, n_written_tokens=lookup.n_written,
                                                    n_written_1h_tokens=lookup.n_written_1h)
        counts, cache, n_prompt = self.counts, self.config.prompt_cache, request.n_prompt_tokens
        counts.n_tokens_prompted += n_prompt
        counts.n_tokens_cached += lookup.n_read
        counts.n_tokens_written += lookup.n_written + lookup.n_written_1h
        counts.cost_usd += self.config.tariff.cost_usd(cache.plain_tokens(n_prompt, lookup) if cache is not None
                                                       else n_prompt, 0)
        return None

    def shared_luck(self, session: str | None, now: float, rng: Random) -> float | None:
        """The random number that requests of a session share; None: this one draws its own. Each takes the shared one with
        probability sqrt(rho), so for two requests of a session, being in the tail has correlation rho.
        """
        rho = self.config.tail_correlation
        if session is None or not rho or rng.random() >= sqrt(rho):
            return None
        window = int((now - self._began_at) / self.config.tail_redraw_s)
        return self.dice.for_session(session, window).random()

    def warm_at(self, now: float) -> float:
        """When it can start to work: now, or at the end of a cold start."""
        cold = self.config.cold_start
        if cold is None:
            return now
        was = self._active_at
        is_cold = cold.starts_cold if was is None else (self.counts.n_running <= 1 and now - was >= cold.after_idle_s)
        if is_cold:
            rng = self.dice.for_cold_start(self.counts.n_cold_starts)
            self._warm_at = now + (rng.uniform(cold.container_min_s, cold.container_max_s)
                                   + rng.uniform(cold.load_min_s, cold.load_max_s))
            self.counts.n_cold_starts += 1
        self._active_at = now
        return max(now, self._warm_at)

    def list_limits(self) -> list[VendorLimit]:
        return self._meter.list_limits(self.clock.now()) if self._meter is not None else []

    def build_fault_error(self, fault: FaultRule, request: SimulatedRequest) -> tuple[VendorError, list[VendorLimit]]:
        """The error of a fault rule, and the limits in its headers; for a rate limit error the first limit is exhausted."""
        limits, again_s = self.list_limits(), fault.retry_after_s
        if fault.status != RATE_LIMITED or fault.code not in ("", "rate_limit_exceeded"):
            return error_for_status(fault.status, fault.code, again_s), limits
        limits = exhaust_first_limit(limits, again_s)
        return rate_limit_error(limits[0], 1, request.model, again_s), limits

    def build_headers(self, call: CallState, limits: list[VendorLimit] | None = None) -> Headers:
        """The vendor's headers of any answer, with the limits (None: the current ones)."""
        own = vendor_headers(self.numbers.vendor, call.request_id, self.clock.now() - call.received_at)
        if limits is None:
            limits = self.list_limits()
        return own + limit_headers(limits, self.numbers.vendor, self.clock.wall()) if limits else own

    def call_at(self, instant: float, act: Callable[[], None]) -> None:
        """Call `act` at an instant of the clock; at once if that has passed."""
        delay_s = instant - self.clock.now()
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, act)
        else:
            act()

    def record_end(self, call: CallState) -> None:
        """A call has ended: count it and free its capacity."""
        assert call.outcome is not None
        assert call.ended_at is not None
        counts, n_output = self.counts, call.n_generated
        counts.n_running -= 1
        counts.last_at = self._active_at = call.ended_at
        counts.outcomes[call.outcome] = counts.outcomes.get(call.outcome, 0) + 1
        counts.n_tokens_generated += n_output
        cost_usd = self.config.tariff.cost_usd(0, n_output)
        counts.cost_usd += cost_usd
        if call.outcome == "cancelled":
            counts.n_tokens_unread += n_output
            counts.n_tokens_after_hangup += call.n_after_hangup
            counts.cost_unread_usd += cost_usd
        if call.charge is not None:
            call.charge.settle(n_output, call.ended_at)
        if call.sequence is not None and self.engine is not None:
            self.engine.release(call.sequence)

    def __repr__(self) -> str:
        counts = self.counts
        return f"<Provider {self.name}: {counts.n_running} running, {counts.n_asked} requests, {self.regime_state.value}>"


class _ActiveRule:
    """A fault rule and how often it was applied."""

    __slots__ = ("_from_s", "n_struck", "rule")

    def __init__(self, of: FaultRule, from_s: float = 0.0) -> None:
        self.rule = of
        self.n_struck = 0
        self._from_s = from_s  # the provider's age from which its schedule counts

    def strike(self, api: Api, age_s: float, rng: Random) -> bool:
        """Whether the fault applies to a request. Draws one random number in any case."""
        of = self.rule
        is_drawn = rng.random() < of.rate
        if not is_drawn or not of.covers(api, age_s - self._from_s):
            return False
        if of.max_count is not None and self.n_struck >= of.max_count:
            return False
        self.n_struck += 1
        return True
