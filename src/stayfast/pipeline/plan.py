"""What one stage hands to the next. A Plan cannot exist without a Prompt, nor a reply without a Started."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.core.types import AnswerSummary, Api, Chunk, Outcome, Request, Usage
from stayfast.pipeline.attempts.hedge_plans import Hedging, never
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.prompt_cache.planner import PlannedPrompt, PromptCachePlanner
from stayfast.pipeline.routing.selector import RoutingFeedback, Target, UpstreamSelector
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.overload import SizeConfig
from stayfast.policy.admission.price import Prices, dearest
from stayfast.policy.budget import BudgetConfig, StageBudget, share_out
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.upstreams.base import AnswerStream

OnStall = Literal["wait", "end", "rescue"]  # what is done when a running answer stalls


class Prompt(msgspec.Struct, frozen=True):
    """context -> route: the request as it goes on to an upstream."""

    request: Request
    layout: PlannedPrompt | None = None  # None: nobody sees to the provider's prompt cache


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """What a route says of time: how much there is, who may use it, and what is done when it runs out."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    budget: StageBudget = field(default_factory=lambda: share_out(BudgetConfig(), Timeouts().total_s))
    template: str = ""  # the answer given instead of an error; empty: none
    ends_partial: bool = False  # an answer that has begun is ended in its protocol when its time is up, not broken off
    route: str | None = None  # whose terms these are; None: nobody's, the name that was asked for does not exist
    cache: RouteCache | None = None  # None: it has none
    size: SizeConfig | None = None  # None: prompts may be of any length
    prefix: PromptCachePlanner | None = None  # None: nobody sees to the providers' prompt caches
    dearest: Prices = field(default_factory=dict)  # of all its targets, by the client's name for a model; set by the route

    @property
    def has_substitute(self) -> bool:
        """Whether the route has something to give in place of the first choice's answer, for which time is to be left."""
        return (bool(self.template) or self.ends_partial or self.budget.reserve_s > 0
                or (self.cache is not None and self.cache.config.stale_if_error_s > 0))


@dataclass(frozen=True, slots=True)
class Route:
    """The name that clients send as `model`, its targets and its policies."""

    name: str
    targets: tuple[Target, ...]
    in_turn: bool = False  # the first that is well, instead of the less busy of two
    terms: RoutePolicy = field(default_factory=RoutePolicy)
    retry: RetryConfig = field(default_factory=RetryConfig)
    fallback: tuple[tuple[Target, ...], ...] = ()  # in tiers, asked in order
    hedging: Hedging = field(default_factory=never)
    on_stall: OnStall = "wait"
    picking: UpstreamSelector | None = None  # affinity, weights, ejection; None: it has none of them
    able: Mapping[Api, tuple[Target, ...]] = field(init=False, compare=False, repr=False)  # of its targets, by API

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError(f"route {self.name!r} needs at least one upstream")
        object.__setattr__(self, "able", {api: able(self.targets, api) for api in Api})
        priced = [(target.prices, target.model) for tier in (self.targets, *self.fallback) for target in tier]
        object.__setattr__(self, "terms", replace(self.terms, dearest=dearest(priced, self.name)))


def able(targets: tuple[Target, ...], api: Api) -> tuple[Target, ...]:
    return tuple([target for target in targets if target.member.upstream.can_serve(api)])


class Plan(msgspec.Struct, frozen=True):
    """route -> call: where one request goes, candidates best first, and who answers when none of them does."""

    route: Route
    prompt: Prompt
    candidates: tuple[Target, ...]
    fallback: tuple[tuple[Target, ...], ...] = ()  # in tiers, asked in order
    aim: RoutingFeedback | None = None  # wants to be told of the attempts
    own: tuple[Target, ...] | None = None  # of the fallback: the route's own, the last resort behind one that goes first


class AnswerSource(Protocol):
    """Who answers: an attempt at an upstream, or a cache."""

    cadence: TokenTimings  # when its parts came

    @property
    def name(self) -> str:
        """For logs and headers."""

    @property
    def is_incremental(self) -> bool:
        """Whether the answer comes in parts, so that a gap in it means something."""

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Release everything; only the first call counts. Never awaits."""

    def abandon(self) -> None:
        """End it, teaching nothing."""


class StartedAnswer(msgspec.Struct, frozen=True):
    """call (or cache) -> relay: an answer that has begun; `first_chunk` is what came up to and with its first content."""

    source: AnswerSource
    stream: AnswerStream
    first_chunk: Chunk


class StoredStream:
    """Source and stream of an answer that is there from the start: a cache's, a template's. Its lead is all of it."""

    __slots__ = ("cadence", "name", "sight")

    is_incremental = False

    def __init__(self, name: str, cadence: TokenTimings, usage: Usage | None, finish_reason: str | None) -> None:
        self.name = name
        self.cadence = cadence
        self.sight = sight = AnswerSummary()
        sight.is_complete = True
        sight.n_content = 1
        sight.finish_reason = finish_reason
        sight.usage = usage

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
