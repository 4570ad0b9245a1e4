"""Admission settings, and two rules: which requests overload rejects, and how long a prompt may be.

Problem: a single sign of overload is unreliable: a burst makes a long queue, a slow disk a late loop, a reload a busy core.
Rule: there are five signs. At two, the bands low and batch are rejected before they queue; at three, all but premium and
realtime:

    queue half full,   predicted wait >= target_wait_s,   event loop later than overload_loop_lag_s,
    this process uses more than overload_cpu_share of a core,
    half of the admitted requests wait for a place at an upstream whose limit is reached

While requests wait, lateness and busyness are sampled every half target_wait_s; lateness decays by half with each sample.
When wrong: behind a balancer that does not see rejections, clients without a back-off retry at once.

Problem: a prompt of a million tokens takes minutes of an engine's prefill, and fails at its context limit. Rule: a prompt
beyond the maximum of the route, or of the client's tier, is rejected before it costs anything, or sent to the route for such
prompts. When wrong: tokens are estimated (`wire.usage`), high for English by a tenth to a fifth, for long numbers up to
threefold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.admission.lanes import LEAST_PLACES, LanesConfig
from stayfast.policy.admission.priority import BANDS, MAX_POINTS, Points, TenantTier
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.admission.quota import QuotaConfig

_FIRST_REFUSED = (len(BANDS), len(BANDS), BANDS.index("low"), *(BANDS.index("standard"),) * 3)  # by the number of signs

HELD_SHARE = 0.5


class OverloadSignals:
    """The load of this process. Pure state; changed only by its owner. Instants and CPU times are in seconds."""

    __slots__ = ("_at", "_cpu_s", "busy", "late_s")

    def __init__(self) -> None:
        self.late_s = 0.0  # how late the loop ran a timer
        self.busy = 0.0  # share of one core
        self._at = self._cpu_s = 0.0

    def reset(self, now: float, cpu_s: float) -> None:
        self.late_s = self.busy = 0.0
        self._at, self._cpu_s = now, cpu_s

    def add_sample(self, due_at: float, now: float, cpu_s: float) -> None:
        """A timer that was due at `due_at` ran now; `cpu_s`: CPU time used so far."""
        self.late_s = max(now - due_at, self.late_s / 2)
        if now > self._at:
            self.busy = (cpu_s - self._cpu_s) / (now - self._at)
            self._at, self._cpu_s = now, cpu_s

    @property
    def summary(self) -> str:
        return f"the event loop {self.late_s * 1000:.0f} ms late, {self.busy:.0%} of a core in use"

    def __repr__(self) -> str:
        return f"<OverloadSignals: {self.summary}>"


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Which requests are admitted, and when. `max_in_flight` None: no limit and no queue."""

    max_in_flight: Annotated[int | None, SettingDoc(
        "Most requests in flight, in all workers together; others queue. null: unlimited.",
        minimum=1, maximum=1_000_000)] = None
    queue: Annotated[QueueConfig, SettingDoc("The admission queue.", is_inline=True)] = field(default_factory=QueueConfig)
    reserved_share: Annotated[float, SettingDoc(
        "Share of slots reserved for each higher priority band with traffic.", minimum=0, maximum=0.2)] = 0.1
    overload_loop_lag_s: Annotated[float, SettingDoc(
        "Event loop lag that counts as one of five overload signals.", minimum=0.001, maximum=10)] = 0.05
    overload_cpu_share: Annotated[float, SettingDoc(
        "CPU share of one core that counts as another.", minimum=0.1, maximum=1)] = 0.95
    priority_points: Annotated[Points, SettingDoc(
        "Points for a request's properties; their sum is its priority.")] = field(default_factory=Points)
    lanes: Annotated[LanesConfig | None, SettingDoc(
        "Slot shares for short, long and batch requests. null: one pool.")] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.lanes is not None and (self.max_in_flight is None or self.max_in_flight < LEAST_PLACES):
            found = "which is not set" if self.max_in_flight is None else f"not {self.max_in_flight}"
            raise ValueError(f"lanes share the places of max_in_flight, which must be at least {LEAST_PLACES}, {found}")

    def may_queue(self, band: int, queue: QueueConfig, n_waiting: int, wait_s: float, signals: OverloadSignals, *,
               held_share: float = 0.0) -> bool:
        """Whether a request of a band may join a queue of `n_waiting` with a predicted wait of `wait_s` (False: reject it).
        `held_share`: share of the admitted requests that wait at an upstream's limit.
        """
        n_signs = ((n_waiting * 2 >= max(1, queue.max_queue)) + (wait_s >= queue.target_wait_s)
                   + (signals.late_s >= self.overload_loop_lag_s) + (signals.busy >= self.overload_cpu_share)
                   + (held_share >= HELD_SHARE))
        return band < _FIRST_REFUSED[n_signs]


@dataclass(frozen=True, slots=True)
class TenantConfig:
    tier: Annotated[TenantTier, SettingDoc("premium is served first, batch last.")] = TenantTier.STANDARD
    weight: Annotated[float, SettingDoc("Fair share relative to other tenants.", minimum=0.001, maximum=1000)] = 1.0
    priority: Annotated[int, SettingDoc(
        "Points for all its requests, added to its tier's.", minimum=-MAX_POINTS, maximum=MAX_POINTS)] = 0
    quota: Annotated[QuotaConfig, SettingDoc("Usage limits, in all workers together.")] = field(default_factory=QuotaConfig)

    def __post_init__(self) -> None:
        check_bounds(self)


ANY_TENANT = "*"  # in the settings: every tenant that is not named there, each by itself
_MOST = 100_000_000

@dataclass(frozen=True, slots=True)
class SizeConfig:
    """The prompt limits of one route. None: no limit. `oversize_route`: the route for longer prompts; empty: they are
    rejected."""

    max_input_tokens: Annotated[int | None, SettingDoc(
        "Longest prompt, in estimated tokens; 413 beyond it. null: unlimited.", minimum=1, maximum=_MOST)] = None
    max_input_tokens_by_tier: Annotated[Mapping[str, int], SettingDoc(
        "The same by tenant tier: premium, standard, batch.",
        minimum=1, maximum=_MOST)] = field(default_factory=lambda: MappingProxyType({}))
    oversize_route: Annotated[str, SettingDoc("Route for longer prompts, with its own settings. Empty: 413.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        for tier in self.max_input_tokens_by_tier:
            if tier not in set(TenantTier):
                raise ValueError(f"max_input_tokens_by_tier.{tier} is no tier: there are {', '.join(TenantTier)}")
        if self.oversize_route and not self.is_bounded:
            raise ValueError("oversize_route is the route for prompts beyond max_input_tokens, which is not set")

    @property
    def is_bounded(self) -> bool:
        return self.max_input_tokens is not None or bool(self.max_input_tokens_by_tier)

    @property
    def lowest_limit(self) -> int:
        """The lowest limit: no tier rejects a prompt of at most this many tokens."""
        most = self.max_input_tokens if self.max_input_tokens is not None else _MOST
        return min(most, *self.max_input_tokens_by_tier.values()) if self.max_input_tokens_by_tier else most

    def max_tokens_for(self, tier: TenantTier) -> int | None:
        """The limit of one tier in tokens; None: no limit."""
        return self.max_input_tokens_by_tier.get(tier, self.max_input_tokens)
