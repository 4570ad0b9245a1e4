"""What a settings file says, as frozen records. Sections that configure one lower floor are that floor's own dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.deadline import Timeouts
from stayfast.engine.config import EngineConfig
from stayfast.observe.recent import RecentConfig
from stayfast.observe.rules.config import AlertsConfig
from stayfast.observe.trace.config import ENDPOINT, TraceConfig
from stayfast.policy.admission import AdmissionConfig, TenantConfig
from stayfast.policy.breaker import BreakerConfig
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.limits import LimitConfig
from stayfast.policy.price import Prices
from stayfast.policy.retry import RetryConfig
from stayfast.policy.slo import Slo
from stayfast.server.config import ServerConfig
from stayfast.settings.about import About
from stayfast.settings.declare import check_bounds
from stayfast.settings.routes import OnOverrun, Route, Tier
from stayfast.settings.secret import Secret
from stayfast.settings.stores import StoreSettings
from stayfast.settings.upstreams import EmbeddedUpstream, TurnUpstream, Upstream, check_headers, nothing
from stayfast.stores.embed import EmbedderConfig


@dataclass(frozen=True, slots=True)
class Defaults:
    """What routes and upstreams have where they say nothing else."""

    timeouts: Annotated[Timeouts, About("How long to wait.")] = field(default_factory=Timeouts)
    budget: Annotated[BudgetConfig, About("How the time to the deadline is shared among the stages.")] = field(
        default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, About("What is done instead of failing.")] = field(default_factory=OnOverrun)
    retry: Annotated[RetryConfig, About("When to try again.")] = field(default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, About("Second attempts beside slow ones.")] = field(default_factory=HedgeConfig)
    slo: Annotated[Slo, About("What users are promised.")] = field(default_factory=Slo)
    limit: Annotated[LimitConfig, About("How many requests an upstream may have at a time.")] = field(
        default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, About("When an upstream is left alone.")] = field(default_factory=BreakerConfig)


@dataclass(frozen=True, slots=True)
class Log:
    """Lines of JSON on standard output. They never hold prompts, answers or keys."""

    level: Annotated[Literal["debug", "info", "warning", "error"], About("The least severe kind of line written.")] = "info"
    requests: Annotated[bool, About("One line a request.")] = True


@dataclass(frozen=True, slots=True)
class Metrics:
    """Prometheus text at /metrics."""

    enabled: Annotated[bool, About("Whether they are kept and served.")] = True


@dataclass(frozen=True, slots=True)
class Tracing:
    """Spans of requests, as OpenTelemetry names them. They never hold prompts, answers or keys. Read at the start only."""

    exporter: Annotated[Literal["none", "otlp"], About(
        "otlp: to a collector, over HTTP in protobuf; needs pip install '.[otel]' in Stayfast's checkout. none: no spans, "
        "and a client's trace context goes on to the upstream as it came.")] = "none"
    endpoint: Annotated[str, About(
        "The collector's address; /v1/traces is added unless it stands there.",
        pattern=r"https?://[^\s@]+", form="like http://host:4318, without user and password",
        is_secret=True)] = ENDPOINT
    headers: Annotated[Mapping[str, Secret], About("Headers sent to the collector.")] = field(default_factory=nothing)
    sample: Annotated[float, About(
        "The share of requests that is traced, where the caller has not decided already: its own decision is kept.",
        minimum=0, maximum=1)] = 1.0
    timeout_s: Annotated[float, About("For one batch of spans.", minimum=0.1, maximum=600)] = 10.0
    service_name: Annotated[str, About("What this gateway is called in traces.")] = "stayfast"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_headers(self.headers)
        TraceConfig(self.endpoint)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a gateway is told. Every name that a route uses is an upstream's."""

    server: Annotated[ServerConfig, About("The edge: where it listens, what it accepts, who may come in.")] = field(
        default_factory=ServerConfig)
    upstreams: Annotated[Mapping[str, Upstream], About("Who can answer, by a name of your choice.")] = field(
        default_factory=nothing)
    routes: Annotated[Mapping[str, Route], About(
        'What clients may send as `model`. The route "*" takes every other name, and passes it on as it is.')] = field(
        default_factory=nothing)
    defaults: Annotated[Defaults, About("What routes and upstreams have where they say nothing else.")] = field(
        default_factory=Defaults)
    admission: Annotated[AdmissionConfig, About("Who comes in when not everybody can.")] = field(
        default_factory=AdmissionConfig)
    tenants: Annotated[Mapping[str, TenantConfig], About(
        'On what terms, by the names in server.keys. "*" stands for every other tenant, each on its own.')] = field(
        default_factory=nothing)
    log: Annotated[Log, About("What is logged.")] = field(default_factory=Log)
    metrics: Annotated[Metrics, About("What is measured.")] = field(default_factory=Metrics)
    tracing: Annotated[Tracing, About("What is traced, and where to.")] = field(default_factory=Tracing)
    recent: Annotated[RecentConfig, About("The last requests, kept in memory for `stayfast explain REQUEST-ID`.")] = field(
        default_factory=RecentConfig)
    alerts: Annotated[AlertsConfig, About("Where the rules of `stayfast alerts` draw their lines.")] = field(
        default_factory=AlertsConfig)
    stores: Annotated[Mapping[str, StoreSettings], About(
        "Where caches keep answers, by a name of your choice (docs/concepts/cache-stores.md).")] = field(
        default_factory=nothing)
    embedder: Annotated[EmbedderConfig, About("What semantic caches compare texts with.")] = field(
        default_factory=EmbedderConfig)
    workers: Annotated[int, About("Processes that share the port, for more than one core.", minimum=1, maximum=256)] = 1

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def admits_all(self) -> bool:
        """Whether there is nothing that could keep a request out."""
        return not self.tenants and self.admission.max_in_flight is None

    @property
    def engines(self) -> dict[str, EngineConfig]:
        """The engines that it asks for, by upstream."""
        return {name: its.engine for name, its in self.upstreams.items() if isinstance(its, EmbeddedUpstream)}

    def model_at(self, route: str, upstream: str) -> str | None:
        """The model's name at one upstream of one route; None: as the client said it."""
        return self.upstreams[upstream].models.get(route) or self.routes[route].model

    def prices_at(self, upstream: str) -> Prices:
        """What tokens cost at one upstream; nothing is known of the embedded model's, and a turn says it itself."""
        its = self.upstreams[upstream]
        return {} if isinstance(its, EmbeddedUpstream | TurnUpstream) else its.prices

    def tier_model_at(self, route: str, tier: Tier, upstream: str) -> str | None:
        """The same for one upstream of a tier of the route's fallback, whose own word stands first."""
        return tier.model or self.model_at(route, upstream)
