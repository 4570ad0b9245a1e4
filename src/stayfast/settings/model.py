"""What a settings file says, as frozen records. Sections that configure one lower floor are that floor's own dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stayfast.core.deadline import Timeouts
from stayfast.core.setting import Secret, SettingDoc, check_bounds
from stayfast.engine.config import EngineConfig
from stayfast.observe.alerts.rule import AlertsConfig
from stayfast.observe.recent import RecentConfig
from stayfast.observe.tracing.config import ENDPOINT, TraceConfig
from stayfast.policy.admission.overload import AdmissionConfig, SizeConfig, TenantConfig
from stayfast.policy.admission.price import Prices
from stayfast.policy.budget import PART, BudgetConfig, share_out
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import IdempotencyConfig
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.routing.outlier_ejection import EjectConfig
from stayfast.policy.slo import Slo
from stayfast.server.config import ServerConfig
from stayfast.settings.upstreams import (
    EmbeddedUpstream,
    StoreSettings,
    TurnUpstreamSettings,
    Upstream,
    check_headers,
    nothing,
)
from stayfast.stores.embedder import EmbedderConfig


@dataclass(frozen=True, slots=True)
class FallbackTier:
    """Who answers when those before have not. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc("Names of upstreams, the first that is well first; may be the route's "
                                                     "own.")]
    model: Annotated[str | None, SettingDoc("The model's name at these upstreams. Unset: as for the route's own.")] = None

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")


@dataclass(frozen=True, slots=True)
class Fallback:
    """Who answers when a route's own upstreams failed or took too long. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc("Names of upstreams, the first that is well first; may be the route's "
                                                     "own.")]
    model: Annotated[str | None, SettingDoc(
        "The model's name at these upstreams, a smaller one for example. Unset: as for the route's own.")] = None
    reserve: Annotated[str, SettingDoc(
        "Time kept for them: the route's own upstreams have what is left of the model's.",
        pattern=PART[1:], form="seconds, or a share of the model's time like 30%", or_number=True)] = "30%"
    then: Annotated[tuple[FallbackTier, ...], SettingDoc(
        "Further tiers, each asked when the one before has not answered and the budget of extra attempts allows it. All "
        "share the reserve.")] = ()

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")

    @property
    def tiers(self) -> tuple[FallbackTier, ...]:
        return (FallbackTier(self.upstreams, self.model), *self.then)


@dataclass(frozen=True, slots=True)
class OnOverrun:
    """What is done instead of failing, when time runs out or all upstreams failed. Nothing: the request fails, at once."""

    fallback: Annotated[Fallback | None, SettingDoc("Others answer: before the first token.")] = None
    template: Annotated[str, SettingDoc(
        "The answer given when nothing else is left, before the first token. Marked by x-stayfast-degraded.")] = ""
    partial: Annotated[bool, SettingDoc(
        "An answer that has begun ends in its protocol, with the reason of a met length limit, instead of breaking off. "
        "Whole answers are fetched as streams for it, where that changes nothing else."
    )] = False


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """A name that clients send as `model`, and where such requests go. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], SettingDoc("Names of upstreams that may answer; `pick` says which of them does.")]
    pick: Annotated[Literal["balance", "order"], SettingDoc(
        "balance: the less busy of two drawn at random, another one when it fails. order: the first of the list that is "
        "well, the next ones only when it fails.")] = "balance"
    weights: Annotated[Mapping[str, float], SettingDoc(
        "Shares of the requests by upstream, as long as all keep up; who is not named has 1. More than 0.")] = field(
        default_factory=nothing)
    affinity: Annotated[AffinityConfig, SettingDoc("What draws a request to one of several upstreams.")] = field(
        default_factory=AffinityConfig)
    eject: Annotated[EjectConfig, SettingDoc("When one of several upstreams is left out as an outlier.")] = field(
        default_factory=EjectConfig)
    model: Annotated[str | None, SettingDoc(
        "The model's name at these upstreams, where their own `models` do not say. Unset: the name that the client sent."
    )] = None
    deadline: Annotated[float | None, SettingDoc(
        "Seconds from accept to the last byte. Unset: timeouts.total_s.", more_than=0, maximum=86_400)] = None
    budget: Annotated[BudgetConfig, SettingDoc(
        "How that time is shared; what is unset comes from defaults.budget.")] = field(default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, SettingDoc(
        "What is done instead of failing; what is unset comes from defaults.on_overrun.")] = field(default_factory=OnOverrun)
    timeouts: Annotated[Timeouts, SettingDoc("How long to wait; what is unset comes from defaults.timeouts.")] = field(
        default_factory=Timeouts)
    retry: Annotated[RetryConfig, SettingDoc("When to try again; what is unset comes from defaults.retry.")] = field(
        default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, SettingDoc(
        "Second attempts beside slow ones; what is unset comes from defaults.hedge.")] = field(default_factory=HedgeConfig)
    on_stall: Annotated[Literal["wait", "end", "rescue"], SettingDoc(
        "When a stream halts in its middle, by the live gaps of its upstream. wait: as long as timeouts.idle_s says. end: "
        "it ends there as at a length limit. rescue: an upstream with `supports_continuation` goes on with it, in the same "
        "answer."
    )] = "wait"
    cache: Annotated[CacheConfig, SettingDoc("Answers that may be given twice (docs/concepts/cache.md).")] = field(
        default_factory=CacheConfig)
    prefix: Annotated[PrefixConfig, SettingDoc(
        "The providers' own caches of what prompts begin with (docs/concepts/prompt-layout.md).")] = field(
        default_factory=PrefixConfig)
    size: Annotated[SizeConfig, SettingDoc("How long prompts may be.", is_inline=True)] = field(default_factory=SizeConfig)
    slo: Annotated[Slo, SettingDoc("What its users are promised; what is unset comes from defaults.slo.")] = field(
        default_factory=Slo)

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")
        if len(set(self.upstreams)) < len(self.upstreams):
            raise ValueError("upstreams must name each upstream once")
        check_bounds(self)
        for name, weight in self.weights.items():
            if name not in self.upstreams:
                raise ValueError(f"weights.{name} is not one of the route's upstreams")
            if not 0.001 <= weight <= 1000:
                raise ValueError(f"weights.{name} must be from 0.001 to 1000, not {weight}")
        if self.pick == "order" and (self.weights or self.affinity.mode != "off"):
            raise ValueError("pick must be balance where there are weights or affinity, not order")
        share_out(self.budget, self.total_s)
        if self.on_overrun.fallback is not None:
            try:
                share_out(self.budget, self.total_s, self.on_overrun.fallback.reserve)
            except ValueError as error:
                raise ValueError(f"on_overrun fallback.{error}") from None

    @property
    def total_s(self) -> float:
        """The time of a request, from accept to its last byte."""
        return self.timeouts.total_s if self.deadline is None else self.deadline


@dataclass(frozen=True, slots=True)
class Defaults:
    """What routes and upstreams have where they say nothing else."""

    timeouts: Annotated[Timeouts, SettingDoc("How long to wait.")] = field(default_factory=Timeouts)
    budget: Annotated[BudgetConfig, SettingDoc("How the time to the deadline is shared among the stages.")] = field(
        default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, SettingDoc("What is done instead of failing.")] = field(default_factory=OnOverrun)
    retry: Annotated[RetryConfig, SettingDoc("When to try again.")] = field(default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, SettingDoc("Second attempts beside slow ones.")] = field(default_factory=HedgeConfig)
    slo: Annotated[Slo, SettingDoc("What users are promised.")] = field(default_factory=Slo)
    limit: Annotated[LimitConfig, SettingDoc("How many requests an upstream may have at a time.")] = field(
        default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, SettingDoc("When an upstream is left alone.")] = field(default_factory=BreakerConfig)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Lines on standard output. They never hold prompts, answers or keys."""

    level: Annotated[Literal["debug", "info", "warning", "error"],
                     SettingDoc("The least severe kind of line written.")] = "info"
    requests: Annotated[bool, SettingDoc("One line a request.")] = True
    format: Annotated[Literal["auto", "text", "json"], SettingDoc(
        "json: one object a line, with everything. text: a short line for a person, in colour on a terminal unless NO_COLOR "
        "is set. auto: text on a terminal, else json.")] = "auto"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Prometheus text at /metrics."""

    enabled: Annotated[bool, SettingDoc("Whether they are kept and served.")] = True
    gen_ai: Annotated[bool, SettingDoc(
        "Also those of OpenTelemetry's GenAI conventions (gen_ai_client_*, gen_ai_server_*), in Prometheus's form. Read at "
        "the start only.")] = False


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Spans of requests, as OpenTelemetry names them. They never hold prompts, answers or keys. Read at the start only."""

    exporter: Annotated[Literal["none", "otlp"], SettingDoc(
        "otlp: to a collector, over HTTP in protobuf; needs pip install '.[otel]' in Stayfast's checkout. none: no spans, "
        "and a client's trace context goes on to the upstream as it came.")] = "none"
    endpoint: Annotated[str, SettingDoc(
        "The collector's address; /v1/traces is added unless it stands there.",
        pattern=r"https?://[^\s@]+", form="like http://host:4318, without user and password",
        is_secret=True)] = ENDPOINT
    headers: Annotated[Mapping[str, Secret], SettingDoc("Headers sent to the collector.")] = field(default_factory=nothing)
    sample: Annotated[float, SettingDoc(
        "The share of requests that is traced, where the caller has not decided already: its own decision is kept.",
        minimum=0, maximum=1)] = 1.0
    timeout_s: Annotated[float, SettingDoc("For one batch of spans.", minimum=0.1, maximum=600)] = 10.0
    service_name: Annotated[str, SettingDoc("What this gateway is called in traces.")] = "stayfast"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_headers(self.headers)
        TraceConfig(self.endpoint)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a gateway is told. Every name that a route uses is an upstream's."""

    server: Annotated[ServerConfig, SettingDoc("The edge: where it listens, what it accepts, who may come in.")] = field(
        default_factory=ServerConfig)
    upstreams: Annotated[Mapping[str, Upstream], SettingDoc("Who can answer, by a name of your choice.")] = field(
        default_factory=nothing)
    routes: Annotated[Mapping[str, RouteSettings], SettingDoc(
        'What clients may send as `model`, word for word: names are no patterns. The route "*" takes every other name, and '
        'passes it on as it is.')] = field(
        default_factory=nothing)
    defaults: Annotated[Defaults, SettingDoc("What routes and upstreams have where they say nothing else.")] = field(
        default_factory=Defaults)
    admission: Annotated[AdmissionConfig, SettingDoc("Who comes in when not everybody can.")] = field(
        default_factory=AdmissionConfig)
    tenants: Annotated[Mapping[str, TenantConfig], SettingDoc(
        'On what terms, by the names in server.keys. "*" stands for every other tenant, each on its own.')] = field(
        default_factory=nothing)
    idempotency: Annotated[IdempotencyConfig, SettingDoc(
        "Requests that are sent again under the same `idempotency-key`.")] = field(default_factory=IdempotencyConfig)
    log: Annotated[LogSettings, SettingDoc("What is logged.")] = field(default_factory=LogSettings)
    metrics: Annotated[MetricsSettings, SettingDoc("What is measured.")] = field(default_factory=MetricsSettings)
    tracing: Annotated[TracingSettings, SettingDoc("What is traced, and where to.")] = field(default_factory=TracingSettings)
    recent: Annotated[RecentConfig, SettingDoc(
        "The last requests, kept in memory for `stayfast explain REQUEST-ID`.")] = field(default_factory=RecentConfig)
    alerts: Annotated[AlertsConfig, SettingDoc("Where the rules of `stayfast alerts` draw their lines.")] = field(
        default_factory=AlertsConfig)
    stores: Annotated[Mapping[str, StoreSettings], SettingDoc(
        "Where caches keep answers, by a name of your choice (docs/concepts/cache-stores.md).")] = field(
        default_factory=nothing)
    embedder: Annotated[EmbedderConfig, SettingDoc("What semantic caches compare texts with.")] = field(
        default_factory=EmbedderConfig)
    workers: Annotated[int, SettingDoc("Processes that share the port, for more than one core.", minimum=1, maximum=256)] = 1

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def admits_all(self) -> bool:
        """Whether there is nothing that could keep a request out."""
        return not self.tenants and self.admission.max_in_flight is None

    @property
    def engines(self) -> dict[str, EngineConfig]:
        """The engines that it asks for, by upstream."""
        return {name: upstream_settings.engine for name, upstream_settings in self.upstreams.items()
                if isinstance(upstream_settings, EmbeddedUpstream)}

    def model_at(self, route: str, upstream: str) -> str | None:
        """The model's name at one upstream of one route; None: as the client said it."""
        return self.upstreams[upstream].models.get(route) or self.routes[route].model

    def prices_at(self, upstream: str) -> Prices:
        """What tokens cost at one upstream; nothing is known of the embedded model's, and a turn says it itself."""
        upstream_settings = self.upstreams[upstream]
        return {} if isinstance(upstream_settings, EmbeddedUpstream | TurnUpstreamSettings) else upstream_settings.prices

    def tier_model_at(self, route: str, tier: FallbackTier, upstream: str) -> str | None:
        """The same for one upstream of a tier of the route's fallback, whose own word stands first."""
        return tier.model or self.model_at(route, upstream)
