"""The tiers of one route with what is learned of their speed, and the plan of a request: which tier first, and which then.

Speeds are learned by the service tier that the provider reports to have served, which may differ from that of the request.
Where a tier is often served at another speed, the slower one of its speeds counts.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault
from stayfast.core.events import AttemptDone
from stayfast.core.types import Api, Outcome, Request
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.tiers.verification import SHADOW, TierAdvisor, TierFacts, TierObserver, TierVerifier
from stayfast.policy.tiers.choice import (
    FASTER,
    LARGER,
    SMALLER,
    START,
    TierChoice,
    TierOption,
    TimeLeft,
    choose_tier,
    relation_of,
    reserve_s,
)
from stayfast.policy.tiers.config import SPEEDS, STANDARD, TierLadder, read_served
from stayfast.policy.tiers.speed import SpeedPrediction, TierSpeed

N_SERVED: Final = 16  # newest answers that show at which speeds a tier is served
EXPLORED_EVERY_S: Final = 1.0  # requests that explore a tier, while another one is known to fit
CLOSED, FULL = "closed", "full"
PRESSURE: Final = {CLOSED: "none of its upstreams can be called", FULL: "its upstreams are full"}
SUCCESS = Outcome.SUCCESS


@dataclass(frozen=True, slots=True)
class RouteTier:
    """One tier with its targets. skill: 0 is the smallest; tiers with the same model have the same. speed: of SPEEDS."""

    name: str
    skill: int
    speed: str
    by_api: Mapping[Api, tuple[Target, ...]]


class LadderStep(msgspec.Struct, frozen=True):
    """One tier that a request may be sent to, with its targets, best first."""

    tier: RouteTier
    targets: tuple[Target, ...]


class LadderPlan(msgspec.Struct, frozen=True):
    """The tiers of one request in the order of the attempts. enough: the smallest that is; start_by: the latest first token
    (of a whole answer, its end); infinite: no limit but the deadline.
    """

    ladder: "RouteTiers"
    steps: tuple[LadderStep, ...]
    enough: RouteTier
    facts: TierFacts
    start_by: float = inf

    @property
    def is_reduced(self) -> bool:
        """Whether the first tier has a smaller model than the one that is enough."""
        return self.ladder.is_below(self.steps[0].tier, self.enough)


class TierSpeeds:
    """What is learned of a route's tiers. Survives a reload with unchanged tiers."""

    __slots__ = ("_by_kind", "_served", "chosen", "reported")

    def __init__(self) -> None:
        self._by_kind: dict[tuple[int, str], TierSpeed] = {}  # by skill and speed
        self._served: dict[str, deque[str]] = {}  # speeds of the newest answers, by tier
        self.chosen: Counter[tuple[str, str]] = Counter()  # requests, by tier and why
        self.reported: Counter[tuple[str, str]] = Counter()  # answers, by tier and the service tier that was served

    def speed_of(self, skill: int, speed: str) -> TierSpeed:
        """The samples of one speed of a skill."""
        found = self._by_kind.get((skill, speed))
        if found is None:
            self._by_kind[skill, speed] = found = TierSpeed()
        return found

    def note_served(self, tier: RouteTier, word: str) -> str:
        """The speed at which an answer was served; the tier's own, where the provider does not report it."""
        speed = read_served(word) or tier.speed
        newest = self._served.get(tier.name)
        if newest is None:
            self._served[tier.name] = newest = deque(maxlen=N_SERVED)
        newest.append(speed)
        self.reported[tier.name, speed] += 1
        return speed

    def predict(self, tier: RouteTier, n_bytes: int, max_tokens: int | None, now: float,
                share: float) -> SpeedPrediction | None:
        """The prediction for a request to this tier: that of the slowest speed at which more than 1 - share are served."""
        served = Counter(self._served.get(tier.name) or (tier.speed,))
        least = (1 - share) * served.total()
        found = [one for speed, n in served.items() if n > least
                 and (one := self.speed_of(tier.skill, speed).predict(n_bytes, max_tokens, now, share)) is not None]
        return max(found, key=lambda one: one.end_s, default=None)


class TierLearner:
    """Learns from the attempts at one tier."""

    __slots__ = ("_speeds", "service_tier", "tier")

    def __init__(self, speeds: TierSpeeds, tier: RouteTier) -> None:
        self._speeds = speeds
        self.tier = tier
        self.service_tier = "" if tier.speed == STANDARD else tier.speed

    def learn(self, done: AttemptDone, n_bytes: int, *, is_incremental: bool) -> None:
        """Learn from an attempt that has ended. is_incremental: its time to the first token is known."""
        usage, now, tier = done.usage, done.ended_at, self.tier
        if done.ttft_s is None:
            if done.is_lost or done.fault == Fault.TIMEOUT:
                own = self._speeds.speed_of(tier.skill, tier.speed)
                own.record_given_up(n_bytes, now - done.began_at, now, is_whole=not is_incremental)
            return
        word = usage.tier if usage is not None else ""
        speed = self._speeds.note_served(tier, word) if done.outcome is SUCCESS else read_served(word) or tier.speed
        samples = self._speeds.speed_of(tier.skill, speed)
        n_tokens = (usage.output if usage is not None else 0) or done.n_content
        if is_incremental:
            wrote_s = (done.last_s or done.ttft_s) - done.ttft_s
            per_token_s = wrote_s / (n_tokens - 1) if n_tokens > 1 and wrote_s > 0 else None
            samples.record_stream(n_bytes, done.ttft_s, per_token_s, now)
        elif done.outcome is SUCCESS:
            samples.record_whole(n_bytes, now - done.began_at, now)
        if done.outcome is SUCCESS and n_tokens:
            samples.record_length(n_tokens, now)


class RouteTiers:
    """The tiers of one route, small to large. Belongs to one loop; nothing here awaits."""

    __slots__ = ("_explored_at", "_start", "advisor", "declared", "observer", "route", "speeds", "tiers", "verifier")

    def __init__(self, route: str, declared: TierLadder, tiers: Sequence[RouteTier], speeds: TierSpeeds, *,
                 advisor: TierAdvisor | None = None, verifier: TierVerifier | None = None,
                 observer: TierObserver | None = None) -> None:
        """advisor, verifier: None: only the settings and the time decide. observer: None: nothing is compared."""
        self.route = route
        self.declared = declared
        self.tiers = tuple(tiers)
        self.speeds = speeds
        self.advisor = advisor
        self.observer = observer
        self.verifier = verifier
        self._start = declared.config.start or next(tier.name for tier in tiers if tier.skill == tiers[-1].skill)
        self._explored_at: dict[str, float] = {}

    def plan(self, request: Request, *, tenant: str | None, role: str, deadline: Deadline, ends_at: float, start_by: float,
             now: float, lane: str, order: Callable[[tuple[Target, ...]], tuple[Target, ...]],
             note: Callable[[str], None]) -> LadderPlan | None:
        """The tiers to try; None: none of them can serve the API. ends_at: when the answer must be complete. start_by: its
        latest first token; infinite: no limit. order: the targets of a tier, best first.
        """
        tiers = [tier for tier in self.tiers if tier.by_api[request.api]]
        if not tiers:
            return None
        facts = TierFacts(self.route, tenant, tuple([tier.name for tier in tiers]), self._start, deadline, role,
                          note)
        options = [self._option(tier, request, now, lane) for tier in tiers]
        start = self._find_start(request, facts, options, waits=start_by < inf)
        if role.startswith(SHADOW):  # another tier's answer would be compared with itself
            only = LadderStep(tiers[start], order(tiers[start].by_api[request.api]))
            return LadderPlan(self, (only,), tiers[start], facts)
        left = TimeLeft(ends_at - now, start_by - now)
        name, explored_at = options[start].name, self._explored_at.get(options[start].name, -inf)
        choice = choose_tier(options, start, left, down=self.declared.config.down,
                             may_explore=now >= explored_at + EXPLORED_EVERY_S)
        if choice.is_exploring:
            self._explored_at[name] = now
        why = _why(choice, options[start])
        self.speeds.chosen[options[choice.at].name, why] += 1
        note(_describe_choice(options, choice, start, left))
        steps = tuple([LadderStep(tiers[n], order(tiers[n].by_api[request.api])) for n in (choice.at, *choice.then)])
        return LadderPlan(self, steps, tiers[start], facts, start_by)

    def reserve(self, own: RouteTier, following: RouteTier, request: Request, left: TimeLeft, now: float) -> TimeLeft:
        """How long before the end and the latest start an attempt at `own` is left for the following tier."""
        return reserve_s(self._predicted(own, request, now), self._predicted(following, request, now), left)

    def predict(self, tier: RouteTier, request: Request, now: float) -> SpeedPrediction | None:
        """The speed of the tier for this request; None: not known."""
        return self.speeds.predict(tier, len(request.body), request.max_output_tokens, now, self.declared.config.percentile)

    def is_below(self, tier: RouteTier, other: RouteTier) -> bool:
        """Whether a tier has a smaller model than another."""
        return relation_of(_plain(tier), _plain(other)) == SMALLER

    def is_above(self, tier: RouteTier, other: RouteTier) -> bool:
        """Whether a tier has a larger model than another, or the same at a faster service tier."""
        return relation_of(_plain(tier), _plain(other)) in (LARGER, FASTER)

    def pressure_of(self, tier: RouteTier, request: Request, now: float, lane: str) -> str:
        """Why no target of the tier can be called now; empty: one can."""
        return _pressure(tier.by_api[request.api], request.model, now, lane)

    def count_attempt(self, tier: RouteTier, why: str) -> None:
        """A request went on to this tier: failed, escalated."""
        self.speeds.chosen[tier.name, why] += 1

    def _find_start(self, request: Request, facts: TierFacts, options: Sequence[TierOption], *, waits: bool) -> int:
        """The tier that is enough. waits: the client has set the time to the start, so it accepts slower service tiers."""
        names = facts.tiers
        advised = self.advisor.advise(request, facts) if self.advisor is not None else None
        wanted = advised if advised is not None else self._start
        start = names.index(wanted) if wanted in names else len(names) - 1
        if not waits:
            return start
        own = options[start]
        peers = [n for n, one in enumerate(options) if one.skill == own.skill]
        return min(peers, key=lambda n: (options[n].speed, n != start))

    def _option(self, tier: RouteTier, request: Request, now: float, lane: str) -> TierOption:
        return self._predicted(tier, request, now)._replace(pressure=self.pressure_of(tier, request, now, lane))

    def _predicted(self, tier: RouteTier, request: Request, now: float) -> TierOption:
        return _plain(tier)._replace(prediction=self.predict(tier, request, now))

    def __repr__(self) -> str:
        return f"<RouteTiers {self.route}: {', '.join(tier.name for tier in self.tiers)}, start {self._start}>"


def _plain(tier: RouteTier) -> TierOption:
    return TierOption(tier.name, tier.skill, SPEEDS.index(tier.speed or STANDARD))


def _pressure(targets: Sequence[Target], model: str, now: float, lane: str) -> str:
    """Why no target can be called now; empty: one can."""
    is_open = False
    for target in targets:
        load = target.member.load_of(now, target.model or model)
        if load.share > 0 or load.needs_probe:
            if target.member.limiter_of(lane).has_room:
                return ""
            is_open = True
    return FULL if is_open else CLOSED


def _why(choice: TierChoice, start: TierOption) -> str:
    if choice.is_exploring:
        return "explore"
    if choice.relation == START:
        return "start"
    return "pressure" if start.pressure else "time"


def _describe_choice(options: Sequence[TierOption], choice: TierChoice, start: int, left: TimeLeft) -> str:
    option, own = options[choice.at], options[start]
    text = f"tier {option.name}: {_describe_time(option, left)}"
    if choice.at != start:
        why = PRESSURE[own.pressure] if own.pressure else _describe_time(own, left)
        text += f"; not {own.name}: {why}"
    return text


def _describe_time(option: TierOption, left: TimeLeft) -> str:
    found = option.prediction
    if found is None:
        return f"no prediction, {left.end_s:.2g} s left"
    if found.first_s > left.first_s or (left.first_s < inf and found.end_s <= left.end_s):
        return f"first token predicted in {found.first_s:.2g} s of {left.first_s:.2g} s to the start"
    return f"predicted {found.end_s:.2g} s of {left.end_s:.2g} s left"
