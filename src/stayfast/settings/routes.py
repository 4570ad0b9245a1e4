"""What a settings file says of one name that clients ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stayfast.core.deadline import Timeouts
from stayfast.policy.affinity import AffinityConfig
from stayfast.policy.budget import PART, BudgetConfig, share_out
from stayfast.policy.cache import CacheConfig
from stayfast.policy.eject import EjectConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.prefix import PrefixConfig
from stayfast.policy.retry import RetryConfig
from stayfast.policy.size import SizeConfig
from stayfast.policy.slo import Slo
from stayfast.settings.about import About
from stayfast.settings.declare import check_bounds
from stayfast.settings.upstreams import nothing


@dataclass(frozen=True, slots=True)
class Tier:
    """Who answers when those before have not. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], About("Names of upstreams, the first that is well first; may be the route's own.")]
    model: Annotated[str | None, About("The model's name at these upstreams. Unset: as for the route's own.")] = None

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")


@dataclass(frozen=True, slots=True)
class Fallback:
    """Who answers when a route's own upstreams failed or took too long. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], About("Names of upstreams, the first that is well first; may be the route's own.")]
    model: Annotated[str | None, About(
        "The model's name at these upstreams, a smaller one for example. Unset: as for the route's own.")] = None
    reserve: Annotated[str, About(
        "Time kept for them: the route's own upstreams have what is left of the model's.",
        pattern=PART[1:], form="seconds, or a share of the model's time like 30%", or_number=True)] = "30%"
    then: Annotated[tuple[Tier, ...], About(
        "Further tiers, each asked when the one before has not answered and the budget of extra attempts allows it. All "
        "share the reserve.")] = ()

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """All of them, in order."""
        return (Tier(self.upstreams, self.model), *self.then)


@dataclass(frozen=True, slots=True)
class OnOverrun:
    """What is done instead of failing, when time runs out or all upstreams failed. Nothing: the request fails, at once."""

    fallback: Annotated[Fallback | None, About("Others answer: before the first token.")] = None
    template: Annotated[str, About(
        "The answer given when nothing else is left, before the first token. Marked by x-stayfast-degraded.")] = ""
    partial: Annotated[bool, About(
        "An answer that has begun ends in its protocol, with the reason of a met length limit, instead of breaking off."
    )] = False


@dataclass(frozen=True, slots=True)
class Route:
    """A name that clients send as `model`, and where such requests go. A list alone means `upstreams`."""

    SHORTHAND: ClassVar[str] = "upstreams"

    upstreams: Annotated[tuple[str, ...], About("Names of upstreams that may answer; `pick` says which of them does.")]
    pick: Annotated[Literal["balance", "order"], About(
        "balance: the less busy of two drawn at random, another one when it fails. order: the first of the list that is "
        "well, the next ones only when it fails.")] = "balance"
    weights: Annotated[Mapping[str, float], About(
        "Shares of the requests by upstream, as long as all keep up; who is not named has 1. More than 0.")] = field(
        default_factory=nothing)
    affinity: Annotated[AffinityConfig, About("What draws a request to one of several upstreams.")] = field(
        default_factory=AffinityConfig)
    eject: Annotated[EjectConfig, About("When one of several upstreams is left out as an outlier.")] = field(
        default_factory=EjectConfig)
    model: Annotated[str | None, About(
        "The model's name at these upstreams, where their own `models` do not say. Unset: the name that the client sent."
    )] = None
    deadline: Annotated[float | None, About(
        "Seconds from accept to the last byte. Unset: timeouts.total_s.", more_than=0, maximum=86_400)] = None
    budget: Annotated[BudgetConfig, About("How that time is shared; what is unset comes from defaults.budget.")] = field(
        default_factory=BudgetConfig)
    on_overrun: Annotated[OnOverrun, About(
        "What is done instead of failing; what is unset comes from defaults.on_overrun.")] = field(default_factory=OnOverrun)
    timeouts: Annotated[Timeouts, About("How long to wait; what is unset comes from defaults.timeouts.")] = field(
        default_factory=Timeouts)
    retry: Annotated[RetryConfig, About("When to try again; what is unset comes from defaults.retry.")] = field(
        default_factory=RetryConfig)
    hedge: Annotated[HedgeConfig, About(
        "Second attempts beside slow ones; what is unset comes from defaults.hedge.")] = field(default_factory=HedgeConfig)
    on_stall: Annotated[Literal["wait", "end", "rescue"], About(
        "When a stream halts in its middle, by the live gaps of its upstream. wait: as long as timeouts.idle_s says. end: "
        "it ends there as at a length limit. rescue: an upstream with `continues` goes on with it, in the same answer."
    )] = "wait"
    cache: Annotated[CacheConfig, About("Answers that may be given twice (docs/concepts/cache.md).")] = field(
        default_factory=CacheConfig)
    prefix: Annotated[PrefixConfig, About(
        "The providers' own caches of what prompts begin with (docs/concepts/prompt-layout.md).")] = field(
        default_factory=PrefixConfig)
    size: Annotated[SizeConfig, About("How long prompts may be.", is_inline=True)] = field(default_factory=SizeConfig)
    slo: Annotated[Slo, About("What its users are promised; what is unset comes from defaults.slo.")] = field(
        default_factory=Slo)

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("upstreams must name at least one upstream")
        if len(set(self.upstreams)) < len(self.upstreams):
            raise ValueError("upstreams must name each upstream once")
        check_bounds(self)
        self._check_weights()
        share_out(self.budget, self.total_s)
        if self.on_overrun.fallback is not None:
            try:
                share_out(self.budget, self.total_s, self.on_overrun.fallback.reserve)
            except ValueError as error:
                raise ValueError(f"on_overrun fallback.{error}") from None

    def _check_weights(self) -> None:
        for name, weight in self.weights.items():
            if name not in self.upstreams:
                raise ValueError(f"weights.{name} is not one of the route's upstreams")
            if not 0.001 <= weight <= 1000:
                raise ValueError(f"weights.{name} must be from 0.001 to 1000, not {weight}")
        if self.pick == "order" and (self.weights or self.affinity.mode != "off"):
            raise ValueError("pick must be balance where there are weights or affinity, not order")

    @property
    def total_s(self) -> float:
        """The time of a request, from accept to its last byte."""
        return self.timeouts.total_s if self.deadline is None else self.deadline
