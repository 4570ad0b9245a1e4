"""From the name a client asked for to the upstreams that may answer, best first."""

from collections.abc import Iterable, Iterator, Mapping
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.core.types import Request
from stayfast.pipeline.attempts.attempt import MAX_NAME
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, Prompt, Route, RoutePolicy, able
from stayfast.pipeline.routing.selector import RoutingFeedback, Target, UpstreamSelector, session_of
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.policy.routing.load_balancing import CandidateLoad, in_turn, order

ANY_MODEL = "*"
_CLOSED = BreakerState.CLOSED


class Router:
    """The routes of one set of settings. Task-safe: holds no state of its own."""

    __slots__ = ("_clock", "_default", "_owners", "_rng", "_routes")

    def __init__(self, routes: Mapping[str, Route], default: RoutePolicy, clock: Clock, rng: Random,
                 owners: ResponseOwners | None = None) -> None:
        """owners: None: any tenant may go on from any response."""
        self._clock = clock
        self._owners = owners
        self._routes = dict(routes)
        self._default = default
        self._rng = rng

    @property
    def routes(self) -> Mapping[str, Route]:
        return self._routes

    @property
    def model_names(self) -> list[str]:
        """What GET /v1/models lists: every route but the wildcard."""
        return [name for name in self._routes if name != ANY_MODEL]

    def terms(self, model: str) -> RoutePolicy:
        """What holds for a request for this model; the defaults when there is no such route (it will be rejected)."""
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        return route.terms if route is not None else self._default

    def plan(self, ex: Exchange, prompt: Prompt) -> Plan:
        """Candidates for this request. Raises Rejected: no such route (404), none of its upstreams speaks the API, or the
        response that it goes on from is another tenant's.
        """
        request = ex.request
        self._check_owner(request.previous_response_id, ex.arrival.tenant)
        route = self._routes.get(request.model) or self._routes.get(ANY_MODEL)
        if route is None:
            raise Rejected(f"The model {request.model[:MAX_NAME]!r} does not exist here. GET /v1/models lists what does.",
                           status=404, code="model_not_found", param="model")
        ex.route = route.name
        capable = route.able[request.api]
        spare = [tier for each in route.fallback if (tier := able(each, request.api))] if route.fallback else []
        if not capable:
            if not spare:
                raise Rejected(f"No upstream of {request.model!r} can serve {request.api.value} requests.",
                               code="unsupported_api", param="model")
            capable = spare.pop(0)
            ex.degraded = "fallback"
        aim = None
        if len(capable) > 1:
            if route.picking is not None:
                capable, aim = self._picked(route.picking, ex, prompt.request, capable)
            else:
                pick = in_turn if route.in_turn else order
                capable = tuple([capable[index] for index in pick(self._loads(capable, request.model), self._rng)])
        tiers = [capable, *[self._in_turn(tier, request.model) for tier in spare]] if spare else [capable]
        n_alone = 0  # tiers that are left alone, before one that may go: they are the last resort
        if spare and not self._may_go(capable[0], request.model):
            n_alone = next((n for n, tier in enumerate(tiers) if self._may_go(tier[0], request.model)), 0)
        first, last = capable[0].member, capable[-1].member
        if (first.own_health.breaker.state is not _CLOSED or last.own_health.breaker.state is not _CLOSED or first.has_news
                or last.has_news or first.models is not None):
            ex.notes.extend(_of_healths(capable, request.model, self._clock.now(), is_spared=n_alone > 0))
        if n_alone:
            tiers = [*tiers[n_alone:], *tiers[:n_alone]]
            ex.degraded = "fallback"
        return Plan(route, prompt, tiers[0], tuple(tiers[1:]), aim, capable if n_alone else None)

    def _check_owner(self, response_id: str | None, tenant: str | None) -> None:
        if response_id is None or tenant is None or self._owners is None:
            return
        if self._owners.is_anothers(response_id, tenant):
            raise Rejected("The previous response was not found.", code="previous_response_not_found",
                           param="previous_response_id")

    def _picked(self, picking: UpstreamSelector, ex: Exchange, request: Request,
                able: tuple[Target, ...]) -> tuple[tuple[Target, ...], RoutingFeedback]:
        headers = ex.arrival.headers
        found, aim, notes = picking.order(able, request, session_of(headers) if headers else b"", now=self._clock.now(),
                                          rng=self._rng)
        if notes:
            ex.notes += notes
        return tuple([able[index] for index in found]), aim

    def _in_turn(self, tier: tuple[Target, ...], model: str) -> tuple[Target, ...]:
        return tier if len(tier) == 1 else tuple([tier[index] for index in in_turn(self._loads(tier, model), self._rng)])

    def _may_go(self, target: Target, model: str) -> bool:
        load = target.member.load(self._clock.now(), target.model or model)
        return load.share > 0 or load.wants_probe

    def _loads(self, targets: Iterable[Target], model: str) -> list[CandidateLoad]:
        now = self._clock.now()
        return [target.member.load(now, target.model or model) for target in targets]


def _of_healths(able: tuple[Target, ...], model: str, now: float, *, is_spared: bool) -> Iterator[str]:
    """What breakers, refused keys and the like have to do with this order. `is_spared`: a fallback goes before them all."""
    for_want = "stands behind the fallback" if is_spared else "is used as a last resort"
    breakers = [target.member.health(target.model or model).breaker for target in able]
    for n, (target, breaker) in enumerate(zip(able, breakers, strict=True)):
        why_alone = target.member.why_alone(now, target.model or model) if target.member.has_news else ""
        if why_alone:
            yield f"{target.member.upstream.name} {'stands behind' if n else for_want}: {why_alone}"
        elif breaker.state is not _CLOSED:
            if n:
                why = "stands behind"
            elif any(other.state is _CLOSED for other in breakers):
                why = "goes first, as a probe"
            else:
                why = for_want
            state = breaker.state.value.replace("_", " ")
            yield f"{target.member.upstream.name} {why}: its breaker is {state}, {breaker.why}"
