"""What one stage returns and the next one takes: Admitted, then Hit, Miss or None, Prompt, Plan, StartedAnswer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.core.types import Allowance, AnswerSummary, Api, CacheControl, Chunk, Outcome, Request, Usage
from stayfast.pipeline.attempts.hedge_plans import Hedging, no_hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.cache.semantic import SemanticQuery
from stayfast.pipeline.classify.screen import RequestScreen
from stayfast.pipeline.context.count_answers import UNLEARNED_COUNTS
from stayfast.pipeline.context.output_caps import RouteCaps
from stayfast.pipeline.context.step import ContextStep
from stayfast.pipeline.context.token_counter import UNLEARNED, TokenCounter
from stayfast.pipeline.hooks.route_hooks import RouteHooks
from stayfast.pipeline.prompt_cache.planner import PlannedPrompt, PromptCachePlanner
from stayfast.pipeline.routing.selector import RoutingFeedback, Target, UpstreamSelector
from stayfast.pipeline.tiers.ladder import LadderPlan, RouteTiers
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.pipeline.warm.route_pool import RoutePool
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.overload import SizeConfig
from stayfast.policy.admission.price import Prices, highest_prices
from stayfast.policy.budget import BudgetConfig, StageBudget, divide_deadline
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.stores.base import CachedAnswer
from stayfast.upstreams.base import AnswerStream, TokenCounting

OnStall = Literal["wait", "end", "rescue"]  # what is done when a running answer stalls
START_NOTHING: Final[Callable[[], object]] = bool  # for admissions that count no first tokens; a call without a frame
CallKey = tuple[bytes, bool, bool]  # of calls that equal requests share: key of the question; streamed; usage at its end


class Admitted(msgspec.Struct, frozen=True):
    """admit -> gateway: a place in the gateway."""

    release: Callable[[], None]  # gives the place back; to be called exactly once
    start_reply: Callable[[], object] = START_NOTHING  # called when the call is over: at the first token of a stream
    lane: str = ""  # empty: there are no lanes
    band: int = 0
    share: TenantShare | None = None  # the tenant's; None: all are admitted at once
    allowances: tuple[Allowance, ...] = ()  # what is left of the client's quota


class Prompt(msgspec.Struct, frozen=True):
    """context -> route: the request as it is sent to an upstream."""

    request: Request
    layout: PlannedPrompt | None = None  # None: not laid out for a provider's prompt cache


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """A route's time: how much there is, how stages share it, and what is done when it runs out."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    budget: StageBudget = field(default_factory=lambda: divide_deadline(BudgetConfig(), Timeouts().total_s))
    template: str = ""  # the answer given instead of an error; empty: none
    ends_partial: bool = False  # at the deadline, end a started answer in its protocol instead of breaking it off
    route: str | None = None  # None: the defaults, for a name that does not exist
    cache: RouteCache | None = None
    size: SizeConfig | None = None  # None: prompts may be of any length
    prefix: PromptCachePlanner | None = None
    hooks: RouteHooks | None = None
    cap: RouteCaps | None = None  # None: output limits are the clients' own
    screen: RequestScreen | None = None  # before the cache: guard, and another route by class
    context: tuple[ContextStep, ...] = ()  # run in order; empty: prompts are sent as clients sent them
    counter: TokenCounter = UNLEARNED
    counting: TokenCounting = UNLEARNED_COUNTS  # answers requests for token counts
    dearest: Prices = field(default_factory=dict)  # highest prices of all targets, by the client's model name; set by Route

    @property
    def has_substitute(self) -> bool:
        """Whether the route can answer without its first choice, so that time must be left for that."""
        return (bool(self.template) or self.ends_partial or self.budget.reserve_s > 0
                or (self.cache is not None and self.cache.config.stale_if_error_s > 0))


@dataclass(frozen=True, slots=True)
class Route:
    """The name that clients send as `model`, its targets and its policies."""

    name: str
    targets: tuple[Target, ...]
    in_turn: bool = False  # choose the first healthy target instead of the less busy of two
    policy: RoutePolicy = field(default_factory=RoutePolicy)
    retry: RetryConfig = field(default_factory=RetryConfig)
    fallback: tuple[tuple[Target, ...], ...] = ()  # tiers, tried in order
    hedging: Hedging = field(default_factory=no_hedging)
    on_stall: OnStall = "wait"
    selector: UpstreamSelector | None = None  # affinity, weights, ejection; None: none of them
    pool: RoutePool | None = None  # its replicas; None: it has no engines of your own
    ladder: RouteTiers | None = None  # the tiers whose targets `targets` has; None: it has no tiers
    # targets that can serve an API
    targets_by_api: Mapping[Api, tuple[Target, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError(f"route {self.name!r} needs at least one upstream")
        object.__setattr__(self, "targets_by_api", {api: targets_for(self.targets, api) for api in Api})
        priced = [(target.prices, target.model) for tier in (self.targets, *self.fallback) for target in tier]
        object.__setattr__(self, "policy", replace(self.policy, dearest=highest_prices(priced, self.name)))


def targets_for(targets: tuple[Target, ...], api: Api) -> tuple[Target, ...]:
    return tuple([target for target in targets if target.member.upstream.can_serve(api)])


class Plan(msgspec.Struct, frozen=True):
    """route -> call: the targets of one request, best first."""

    route: Route
    prompt: Prompt
    candidates: tuple[Target, ...]
    fallback: tuple[tuple[Target, ...], ...] = ()  # tiers, tried in order when all candidates failed
    feedback: RoutingFeedback | None = None  # receives the outcomes of the attempts
    own_targets: tuple[Target, ...] | None = None  # the route's own targets, where a fallback is tried before them
    lane: str = ""  # of its admission
    band: int = 0
    share: TenantShare | None = None
    ladder: LadderPlan | None = None  # its tiers, of which `candidates` are the first; None: the route has none
    hedge_to: tuple[Target, ...] = ()  # targets of hedges, best first; empty: the candidates
    role: str = ""  # of its attempts; empty: as usual
    hold: RoutePool | None = None  # no replica is ready: the request waits for one, at most until `hold_until`
    hold_until: float = 0.0


class AnswerSource(Protocol):
    """An attempt at an upstream, a subscriber of a shared call, or a stored answer."""

    timings: TokenTimings  # arrival times of its parts

    @property
    def name(self) -> str:
        """For logs and headers."""

    @property
    def is_incremental(self) -> bool:
        """Whether the answer arrives in parts, so that a gap in it is a sign of trouble."""

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Release everything; only the first call counts. Never awaits."""

    def abandon(self) -> None:
        """End it without learning anything from it."""


class StartedAnswer(msgspec.Struct, frozen=True):
    """call (or cache) -> relay: an answer that has started; `first_chunk` is everything up to its first content."""

    source: AnswerSource
    stream: AnswerStream
    first_chunk: Chunk

    def begin_with(self, first_chunk: Chunk) -> "StartedAnswer":
        return StartedAnswer(self.source, self.stream, first_chunk)


class Miss(msgspec.Struct, frozen=True):
    """cache -> call: no answer to return; a call may be shared, and its answer stored, under `call_key`."""

    cache: RouteCache
    key: bytes  # of the answer in the store
    call_key: CallKey
    control: CacheControl | None = None
    stale: CachedAnswer | None = None  # too old to return, unless the call fails
    query: SemanticQuery | None = None  # what the semantic lookup found out
    may_join: bool = True  # the client accepts the answer of a call that is running


class Hit(msgspec.Struct, frozen=True):
    """cache -> relay: a stored answer."""

    answer: StartedAnswer
    refresh: Miss | None = None  # a call to make in the background: the answer is stale, or is audited


class StoredStream:
    """Source and stream of an answer that is complete from the start (stored, or a template): one chunk."""

    __slots__ = ("name", "summary", "timings")

    is_incremental = False

    def __init__(self, name: str, cadence: TokenTimings, usage: Usage | None, finish_reason: str | None) -> None:
        self.name = name
        self.timings = cadence
        self.summary = summary = AnswerSummary()
        summary.is_complete = True
        summary.n_content = 1
        summary.finish_reason = finish_reason
        summary.usage = usage

    async def next(self) -> Chunk | None:
        return None

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        """Holds nothing."""

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Holds nothing."""

    def abandon(self) -> None:
        """Holds nothing."""
