"""The content of a settings file, as frozen records. Sections that configure one lower floor are that floor's own dataclass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stayfast.core.deadline import Timeouts
from stayfast.core.setting import Secret, SettingDoc, check_bounds
from stayfast.engine.config import EngineConfig
from stayfast.engine.speculation import configs_of_arms, name_engine
from stayfast.jobs.config import JobsConfig
from stayfast.observe.alerts.rules import AlertsConfig
from stayfast.observe.recent_requests import RecentConfig
from stayfast.observe.snapshot.config import SnapshotsConfig
from stayfast.observe.tracing.config import ENDPOINT, TraceConfig
from stayfast.pipeline.hooks.config import HooksConfig
from stayfast.pipeline.passthrough.config import PassThroughConfig
from stayfast.policy.admission.overload import AdmissionConfig, SizeConfig, TenantConfig
from stayfast.policy.admission.price import Prices
from stayfast.policy.budget import PART, BudgetConfig, divide_deadline
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import IdempotencyConfig
from stayfast.policy.classify.config import ClassifierConfig, ClassRoutesConfig, GuardConfig
from stayfast.policy.context.config import ContextConfig
from stayfast.policy.context.diet import PromptsConfig
from stayfast.policy.context.output_cap import CapConfig
from stayfast.policy.fleet.config import FleetConfig
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.routing.outlier_ejection import EjectConfig
from stayfast.policy.slo import Slo
from stayfast.policy.tiers.config import TierConfig, TierEntry, TierLadder
from stayfast.policy.tiers.enough import EnoughConfig, check_has_smaller_tier
from stayfast.policy.warm.config import ReplicaPoolConfig
from stayfast.server.config import ServerConfig
from stayfast.settings.presets import Preset
from stayfast.settings.price_table import merge_prices
from stayfast.settings.upstreams import (
    EmbeddedUpstream,
    EncoderUpstreamSettings,
    HttpUpstream,
    StoreSettings,
    TurnUpstreamSettings,
    Upstream,
    check_headers,
    empty_mapping,
)
from stayfast.stores.embedder import EmbedderConfig


@dataclass(frozen=True, slots=True)
class FallbackTier:
    """One more tier of a fallback. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc("Upstream names, in order of preference; may repeat the route's.")]
    model: Annotated[str | None, SettingDoc("Model name at these upstreams. null: as for the route's own.")] = None

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")


@dataclass(frozen=True, slots=True)
class Fallback:
    """Upstreams for when a route's own failed or took too long. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc("Upstream names, in order of preference; may repeat the route's.")]
    model: Annotated[str | None, SettingDoc(
        "Model name at these upstreams, for example a smaller one. null: as for the route's own.")] = None
    reserve: Annotated[str, SettingDoc(
        "Time reserved for the fallback, from the model's part.",
        pattern=PART[1:], form="seconds, or a share of the model's time like 30%", or_number=True)] = "30%"
    then: Annotated[tuple[FallbackTier, ...], SettingDoc(
        "Further tiers, each tried after the one before, within the retry budget. All share the reserve.")] = ()

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")

    @property
    def tiers(self) -> tuple[FallbackTier, ...]:
        return (FallbackTier(self.upstreams, self.model), *self.then)


@dataclass(frozen=True, slots=True)
class OnOverrun:
    """What happens when time runs out or all upstreams fail. With none of these the request fails at once."""

    fallback: Annotated[Fallback | None, SettingDoc("Other upstreams, tried before the first token.")] = None
    template: Annotated[str, SettingDoc(
        "Answer if nothing else is left before the first token; marked by x-stayfast-degraded.")] = ""
    partial: Annotated[bool, SettingDoc(
        "End a started answer as at a length limit instead of breaking off. Whole answers are then fetched as streams."
    )] = False


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """One `model` name of clients, and its upstreams. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc(
        "Upstreams of this route, by name. Empty only where there are `tiers`.")] = ()
    pick: Annotated[Literal["balance", "order"], SettingDoc(
        "balance: the less busy of two random ones. order: the first healthy one of the list. Both fail over.")] = "balance"
    weights: Annotated[Mapping[str, float], SettingDoc(
        "Traffic shares by upstream while all keep up; above 0, others have 1.")] = field(default_factory=empty_mapping)
    affinity: Annotated[AffinityConfig, SettingDoc(
        "Preference for the upstream with a warm prompt cache.")] = field(default_factory=AffinityConfig)
    eject: Annotated[EjectConfig, SettingDoc(
        "Outlier ejection: when an upstream is left out.")] = field(default_factory=EjectConfig)
    pool: Annotated[ReplicaPoolConfig, SettingDoc(
        "Its engines of your own: how many must be ready, and how they scale (docs/scaling.md).")] = field(
        default_factory=ReplicaPoolConfig)
    model: Annotated[str | None, SettingDoc(
        "Model name at these upstreams, unless their `models` name one. null: as the client sent it.")] = None
    tiers: Annotated[tuple[TierEntry, ...], SettingDoc(
        "Instead of `upstreams`: models from small to large, each at its own upstreams (docs/tiers.md).")] = ()
    tier: Annotated[TierConfig, SettingDoc("How a tier is chosen.")] = field(default_factory=TierConfig)
    enough: Annotated[EnoughConfig, SettingDoc(
        "When a smaller tier than `tier.start` is enough (docs/enough.md).")] = field(default_factory=EnoughConfig)
    fallback: Annotated[Fallback | None, SettingDoc(
        "Upstreams for when the route's own failed or took too long. Short for on_overrun.fallback.", is_short=True)] = None
    preset: Annotated[Preset | None, SettingDoc(
        "Kind of work: an objective, time limits and retries where the route sets none itself (docs/promises.md).")] = None
    deadline: Annotated[float | None, SettingDoc(
        "Seconds from accept to last byte. null: timeouts.total_s.", more_than=0, maximum=86_400)] = None
    budget: Annotated[BudgetConfig, SettingDoc(
        "Parts of the deadline per stage: seconds (`0.3`) or a share (`20%`). Empty: no own limit. Unset: defaults.budget."
    )] = field(default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, SettingDoc(
        "What happens when time runs out or all upstreams fail. Unset: defaults.on_overrun.")] = field(
        default_factory=OnOverrun)
    timeouts: Annotated[Timeouts, SettingDoc("Time limits. Unset: defaults.timeouts.")] = field(default_factory=Timeouts)
    retry: Annotated[RetryConfig, SettingDoc(
        "Retries of failed attempts. Unset: defaults.retry.")] = field(default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, SettingDoc(
        "Second attempts in parallel with slow ones. Unset: defaults.hedge.")] = field(default_factory=HedgeConfig)
    on_stall: Annotated[Literal["wait", "end", "rescue"], SettingDoc(
        "If a stream stalls midway. wait: up to timeouts.idle_s. end: as at a length limit. rescue: an upstream with "
        "`supports_continuation` continues the answer.")] = "wait"
    cache: Annotated[CacheConfig, SettingDoc(
        "Response cache (docs/concepts/cache.md).")] = field(default_factory=CacheConfig)
    prefix: Annotated[PrefixConfig, SettingDoc(
        "Prompt caches of the providers (docs/concepts/prompt-layout.md).")] = field(default_factory=PrefixConfig)
    cap: Annotated[CapConfig, SettingDoc(
        "Output limits (docs/caps.md).")] = field(default_factory=CapConfig)
    guard: Annotated[GuardConfig, SettingDoc(
        "Patterns of secrets and prompt injections (docs/classify.md).")] = field(default_factory=GuardConfig)
    classify: Annotated[ClassRoutesConfig, SettingDoc(
        "Another route by the class of the question (docs/classify.md).")] = field(default_factory=ClassRoutesConfig)
    context: Annotated[ContextConfig, SettingDoc(
        "What is sent of a prompt, and how its tokens are counted.")] = field(default_factory=ContextConfig)
    size: Annotated[SizeConfig, SettingDoc("Prompt size limits.", is_inline=True)] = field(default_factory=SizeConfig)
    hooks: Annotated[HooksConfig, SettingDoc(
        "Your functions before and after each call (docs/extensions.md). Unset: defaults.hooks.")] = field(
        default_factory=HooksConfig)
    slo: Annotated[Slo, SettingDoc("Service level objectives. Unset: defaults.slo.")] = field(default_factory=Slo)
    resumable: Annotated[bool, SettingDoc(
        "Store the events of streams, so that a client can reconnect with Last-Event-ID, at any gateway.")] = False

    def __post_init__(self) -> None:
        if not self.upstreams and not self.tiers:
            raise ValueError("upstreams must name at least one upstream")
        if self.upstreams and self.tiers:
            raise ValueError("upstreams must be left out where there are tiers: each tier names its own")
        if len(set(self.upstreams)) < len(self.upstreams):
            raise ValueError("upstreams must name each upstream once")
        TierLadder(self.tiers, self.tier)
        check_has_smaller_tier(self.enough, len(self.tiers))
        check_bounds(self)
        for name, weight in self.weights.items():
            if name not in self.own_upstreams:
                raise ValueError(f"weights.{name} is not one of the route's upstreams")
            if not 0.001 <= weight <= 1000:
                raise ValueError(f"weights.{name} must be from 0.001 to 1000, not {weight}")
        if self.pick == "order" and (self.weights or self.affinity.mode != "off"):
            raise ValueError("pick must be balance where there are weights or affinity, not order")
        divide_deadline(self.budget, self.total_s)
        if self.on_overrun.fallback is not None:
            try:
                divide_deadline(self.budget, self.total_s, self.on_overrun.fallback.reserve)
            except ValueError as error:
                raise ValueError(f"on_overrun fallback.{error}") from None

    @property
    def own_upstreams(self) -> tuple[str, ...]:
        """The upstreams of the route or of all its tiers, each once; without those of fallbacks."""
        return self.upstreams or tuple(dict.fromkeys(name for tier in self.tiers for name in tier.upstreams))

    @property
    def total_s(self) -> float:
        """The deadline of a request in seconds, from accept to its last byte."""
        return self.timeouts.total_s if self.deadline is None else self.deadline


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for routes and upstreams that do not set their own."""

    timeouts: Annotated[Timeouts, SettingDoc("Time limits.")] = field(default_factory=Timeouts)
    budget: Annotated[BudgetConfig, SettingDoc("Parts of the deadline per stage.")] = field(default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, SettingDoc(
        "What happens when time runs out or all upstreams fail.")] = field(default_factory=OnOverrun)
    retry: Annotated[RetryConfig, SettingDoc("Retries of failed attempts.")] = field(default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, SettingDoc(
        "Second attempts in parallel with slow ones.")] = field(default_factory=HedgeConfig)
    hooks: Annotated[HooksConfig, SettingDoc("Your functions before and after each call.")] = field(
        default_factory=HooksConfig)
    slo: Annotated[Slo, SettingDoc("Service level objectives.")] = field(default_factory=Slo)
    limit: Annotated[LimitConfig, SettingDoc("Concurrency limits of upstreams.")] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, SettingDoc("Circuit breakers of upstreams.")] = field(default_factory=BreakerConfig)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Log lines on standard output. Never prompts, answers or keys."""

    level: Annotated[Literal["debug", "info", "warning", "error"], SettingDoc("Lowest severity written.")] = "info"
    requests: Annotated[bool, SettingDoc("One line per request.")] = True
    format: Annotated[Literal["auto", "text", "json"], SettingDoc(
        "json: complete objects. text: short lines for a terminal, in colour unless NO_COLOR is set. auto: text on a "
        "terminal, else json.")] = "auto"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    enabled: Annotated[bool, SettingDoc("Collect and serve metrics.")] = True
    gen_ai: Annotated[bool, SettingDoc(
        "Also OpenTelemetry's GenAI metrics (gen_ai_client_*, gen_ai_server_*). Read at start only.")] = False
    aliases: Annotated[bool, SettingDoc(
        "Also the figures under common names, such as llm_request_duration_seconds and kv_cache_hit_rate. Read at start "
        "only.")] = False
    engine_interval_s: Annotated[float, SettingDoc(
        "Time between two readings of an engine's own metrics, for all workers together; older than three of them, they are "
        "unknown. Read at start only.", minimum=0.5, maximum=300)] = 5.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """OpenTelemetry spans of requests, without prompts, answers or keys. Read at start only."""

    exporter: Annotated[Literal["none", "otlp"], SettingDoc(
        "otlp: to a collector, over HTTP in protobuf; needs pip install '.[otel]' in Stayfast's checkout. none: no spans; "
        "trace context is forwarded.")] = "none"
    endpoint: Annotated[str, SettingDoc(
        "Address of the collector; /v1/traces is appended if missing.",
        pattern=r"https?://[^\s@]+", form="like http://host:4318, without user and password", is_secret=True)] = ENDPOINT
    headers: Annotated[Mapping[str, Secret], SettingDoc("Headers for the collector.")] = field(default_factory=empty_mapping)
    sample: Annotated[float, SettingDoc(
        "Share of traced requests, unless the caller has decided.", minimum=0, maximum=1)] = 1.0
    timeout_s: Annotated[float, SettingDoc("Time limit of one batch of spans.", minimum=0.1, maximum=600)] = 10.0
    service_name: Annotated[str, SettingDoc("Name of this gateway in traces.")] = "stayfast"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_headers(self.headers)
        TraceConfig(self.endpoint)


@dataclass(frozen=True, slots=True)
class Settings:
    """A complete settings file, checked."""

    server: Annotated[ServerConfig, SettingDoc(
        "Listening, limits, time-outs and client keys.")] = field(default_factory=ServerConfig)
    upstreams: Annotated[Mapping[str, Upstream], SettingDoc(
        "Providers and engines, by a name of your choice.")] = field(default_factory=empty_mapping)
    routes: Annotated[Mapping[str, RouteSettings], SettingDoc(
        'Exact `model` names that clients send; "*" takes every other name and forwards it. A list alone means `upstreams`.'
    )] = field(default_factory=empty_mapping)
    defaults: Annotated[Defaults, SettingDoc(
        "Values for routes and upstreams that do not set their own.")] = field(default_factory=Defaults)
    admission: Annotated[AdmissionConfig, SettingDoc(
        "Queueing and rejection under load.")] = field(default_factory=AdmissionConfig)
    tenants: Annotated[Mapping[str, TenantConfig], SettingDoc(
        'Settings of tenants, by their name in server.keys; "*": every other tenant, each on its own.')] = field(
        default_factory=empty_mapping)
    idempotency: Annotated[IdempotencyConfig, SettingDoc(
        "Repeats of a request under the same `idempotency-key`.")] = field(default_factory=IdempotencyConfig)
    log: Annotated[LogSettings, SettingDoc("Logging. Never prompts, answers or keys.")] = field(default_factory=LogSettings)
    metrics: Annotated[MetricsSettings, SettingDoc(
        "Prometheus metrics at /metrics.")] = field(default_factory=MetricsSettings)
    tracing: Annotated[TracingSettings, SettingDoc(
        "OpenTelemetry spans, without prompts, answers or keys. Read at start only.")] = field(
        default_factory=TracingSettings)
    recent: Annotated[RecentConfig, SettingDoc(
        "The last requests, in memory, for `stayfast explain REQUEST-ID`.")] = field(default_factory=RecentConfig)
    prompts: Annotated[PromptsConfig, SettingDoc(
        "Versions of system prompts, for `stayfast prompts list` (docs/prompts.md).")] = field(default_factory=PromptsConfig)
    alerts: Annotated[AlertsConfig, SettingDoc(
        "Thresholds of `stayfast alerts`; latencies over 5 minutes.")] = field(default_factory=AlertsConfig)
    stores: Annotated[Mapping[str, StoreSettings], SettingDoc(
        "Shared stores of cached answers, by a name of your choice (docs/concepts/cache-stores.md).")] = field(
        default_factory=empty_mapping)
    fleet: Annotated[FleetConfig, SettingDoc(
        "Several gateways that act as one (docs/concepts/fleet.md).")] = field(default_factory=FleetConfig)
    embedder: Annotated[EmbedderConfig, SettingDoc(
        "Text embeddings for semantic caches; one model for all routes.")] = field(default_factory=EmbedderConfig)
    classifiers: Annotated[Mapping[str, ClassifierConfig], SettingDoc(
        "Trained classifiers of texts, by a name of your choice (docs/classify.md).")] = field(default_factory=empty_mapping)
    jobs: Annotated[JobsConfig, SettingDoc(
        "Durable jobs, batches and background responses (docs/concepts/jobs.md).")] = field(default_factory=JobsConfig)
    passthrough: Annotated[PassThroughConfig, SettingDoc(
        "Requests under /v1 that the gateway does not serve itself (docs/pass-through.md). A name alone means `upstream`.")
    ] = field(default_factory=PassThroughConfig)
    spend: Annotated[Literal["auto", "on", "off"], SettingDoc(
        "Sums of requests, tokens and cost by day, tenant, key, route and model, in the store of jobs (docs/keys.md). auto: "
        "if that store exists. Read at start only.")] = "auto"
    price_table: Annotated[bool, SettingDoc(
        "List prices for models without `prices`, at upstreams with a provider's own address (docs/prices.md).")] = True
    snapshots: Annotated[SnapshotsConfig, SettingDoc(
        "What the gateway did in the last hours, for `stayfast doctor --since 1h`. Read at start only.")] = field(
        default_factory=SnapshotsConfig)
    workers: Annotated[int, SettingDoc("Processes that share the port, to use more cores.", minimum=1, maximum=256)] = 1
    # by dotted path (`settings.effective.setting_sources`); not a setting
    sources: Mapping[str, str] = field(default_factory=empty_mapping, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def admits_all(self) -> bool:
        """Whether no setting can reject or queue a request."""
        return not self.tenants and self.admission.max_in_flight is None

    @property
    def embedded(self) -> dict[str, EngineConfig]:
        """The embedded engines, by upstream."""
        return {name: upstream_settings.engine for name, upstream_settings in self.upstreams.items()
                if isinstance(upstream_settings, EmbeddedUpstream)}

    @property
    def engines(self) -> dict[str, EngineConfig]:
        """The engine processes, by name: an upstream has several, if it chooses among them (`engine.speculation`)."""
        return {name_engine(name, of_upstream, arm): config for name, of_upstream in self.embedded.items()
                for arm, config in configs_of_arms(of_upstream).items()}

    def model_for(self, route: str, upstream: str) -> str | None:
        """The model name at one upstream of a route; None: as the client sent it."""
        return self.upstreams[upstream].models.get(route) or self.routes[route].model

    def models_for(self, route: str, upstream: str) -> tuple[str | None, ...]:
        """The model names at one upstream of a route, one for each of its tiers there; None: as the client sent it."""
        own, tiers = self.model_for(route, upstream), self.routes[route].tiers
        return tuple(dict.fromkeys([tier.model or own for tier in tiers if upstream in tier.upstreams])) if tiers else (own,)

    def prices_for(self, upstream: str) -> Prices:
        """The prices at one upstream, list prices included. The embedded model has none; a turn reports its own costs."""
        upstream_settings = self.upstreams[upstream]
        if isinstance(upstream_settings, EmbeddedUpstream | TurnUpstreamSettings | EncoderUpstreamSettings):
            return {}
        base_url = upstream_settings.base_url if isinstance(upstream_settings, HttpUpstream) else ""
        return merge_prices(upstream_settings.prices, base_url, uses_table=self.price_table)

    def fallback_model_for(self, route: str, tier: FallbackTier, upstream: str) -> str | None:
        """The same for an upstream of a fallback tier; the tier's own model name takes precedence."""
        return tier.model or self.model_for(route, upstream)
