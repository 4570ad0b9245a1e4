"""From the model that a client names to the prompt that is sent, and the targets that may answer it, best first."""

from collections.abc import Iterable, Iterator, Mapping
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_NAME
from stayfast.core.errors import Rejected
from stayfast.core.types import Request
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Admitted, Plan, Prompt, Route, RoutePolicy, targets_for
from stayfast.pipeline.routing.selector import RoutingFeedback, Target, session_of
from stayfast.pipeline.warm.route_pool import RoutePool
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.policy.routing.load_balancing import CandidateLoad, order_as_listed, order_by_load
from stayfast.upstreams.state.upstream_state import UpstreamState

ANY_MODEL = "*"
_CLOSED = BreakerState.CLOSED


class Router:
    """The routes of one set of settings. Holds no state of its own."""

    __slots__ = ("_clock", "_default", "_owners", "_rng", "_routes")

    def __init__(self, routes: Mapping[str, Route], default: RoutePolicy, clock: Clock, rng: Random,
                 owners: ResponseOwners | None = None) -> None:
        """owners: None: any tenant may continue any response."""
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
        """What GET /v1/models lists: every route except the wildcard."""
        return [name for name in self._routes if name != ANY_MODEL]

    def policy_of(self, model: str) -> RoutePolicy:
        """The policy of the model's route; the defaults if there is no such route (the request will be rejected)."""
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        return route.policy if route is not None else self._default

    def lay_out(self, ex: Exchange, request: Request) -> Prompt:
        """The prompt to send: the request, laid out for the providers' prompt caches if the route wants that."""
        planner = ex.policy.prefix
        return Prompt(request) if planner is None else Prompt(*planner.plan_prompt(request))

    def plan(self, ex: Exchange, prompt: Prompt, admitted: Admitted) -> Plan:
        """The targets for this request. Raises Rejected if there is no such route (404), none of its upstreams can serve the
        API, or the response to continue is another tenant's.
        """
        request = ex.request
        if request.previous_response_id is not None:
            self._check_owner(request.previous_response_id, ex.arrival.tenant)
        route = self._routes.get(request.model) or self._routes.get(ANY_MODEL)
        if route is None:
            raise Rejected(f"The model {request.model[:MAX_NAME]!r} does not exist here. GET /v1/models lists the models.",
                           status=404, code="model_not_found", param="model")
        if route.ladder is not None:
            return self._plan_tiers(ex, route, prompt, admitted)
        capable, aim = route.targets_by_api[request.api], None
        if route.fallback or not capable:
            return self._plan_with_fallback(ex, route, prompt, admitted)
        if len(capable) > 1:
            capable, aim = self._order(ex, route, prompt, capable)
        hold_until = self._hold_until(ex, route.pool, capable, has_fallback=False) if route.pool is not None else 0.0
        self._note_health(ex, capable)
        return Plan(route, prompt, capable, (), aim, None, admitted.lane, admitted.band, admitted.share,
                    hold=route.pool if hold_until else None, hold_until=hold_until)

    def _plan_with_fallback(self, ex: Exchange, route: Route, prompt: Prompt, admitted: Admitted) -> Plan:
        request, capable, aim = ex.request, route.targets_by_api[ex.request.api], None
        spare = [tier for each in route.fallback if (tier := targets_for(each, request.api))]
        if not capable:
            if not spare:
                raise _unsupported(request)
            capable = spare.pop(0)
            ex.record.degrade("fallback")
        if len(capable) > 1:
            capable, aim = self._order(ex, route, prompt, capable)
        tiers = [capable, *[self._in_turn(tier, request.model) for tier in spare]]
        n_closed = 0  # tiers without a usable target, before one that has some: they become the last resort
        hold_until = self._hold_until(ex, route.pool, capable, has_fallback=bool(spare)) if route.pool is not None else 0.0
        if not hold_until and not self._is_usable(capable[0], request.model):
            n_closed = next((n for n, tier in enumerate(tiers) if self._is_usable(tier[0], request.model)), 0)
        self._note_health(ex, capable, is_last_resort=n_closed > 0)
        if n_closed:
            tiers = [*tiers[n_closed:], *tiers[:n_closed]]
            ex.record.degrade("fallback")
        return Plan(route, prompt, tiers[0], tuple(tiers[1:]), aim, capable if n_closed else None, admitted.lane,
                    admitted.band, admitted.share, hold=route.pool if hold_until else None, hold_until=hold_until)

    def _note_health(self, ex: Exchange, targets: tuple[Target, ...], *, is_last_resort: bool = False) -> None:
        first, last = targets[0].member, targets[-1].member
        if first.models is not None or not _is_ordinary(first) or (last is not first and not _is_ordinary(last)):
            ex.record.add_notes(_explain_health(targets, ex.request.model, self._clock.now(), is_last_resort=is_last_resort))

    def _order(self, ex: Exchange, route: Route, prompt: Prompt, capable: tuple[Target, ...]
               ) -> tuple[tuple[Target, ...], RoutingFeedback | None]:
        """The targets, best first, and what receives the outcomes of the attempts."""
        if route.selector is not None:
            headers = ex.arrival.headers
            found, aim, notes = route.selector.rank(capable, prompt.request, session_of(headers) if headers else b"",
                                                    now=self._clock.now(), rng=self._rng)
            ex.record.add_notes(notes)
            return tuple(map(capable.__getitem__, found)), aim
        if route.in_turn:
            return self._in_turn(capable, ex.request.model), None
        return self._by_load(capable, ex.request.model), None

    def _hold_until(self, ex: Exchange, pool: RoutePool, targets: tuple[Target, ...], *, has_fallback: bool) -> float:
        """Until when the request waits for a replica that starts; 0: a target is usable, or the time is too short. A ready
        replica whose breaker is open ends the wait too: probes close a breaker in seconds, and no start is as short.
        """
        if self._is_usable(targets[0], ex.request.model) or any(target.member.is_ready_replica for target in targets):
            return 0.0
        pool.wake_one()
        now, names = self._clock.now(), [target.member.upstream.name for target in targets]
        ttft_s = min(target.member.baselines.all.baseline_s or target.member.fastest_ttft_s for target in targets)
        ends_at = min(ex.deadline.at, ex.start_by) - ex.grace_s - (ex.reserve_s if has_fallback else 0.0)
        held_s = pool.hold_s(names, ttft_s, ends_at - now, now)
        if held_s is None:
            ex.record.note("no replica is ready, and the time left does not hold the start of one")
        return now + held_s if held_s is not None else 0.0

    def _plan_tiers(self, ex: Exchange, route: Route, prompt: Prompt, admitted: Admitted) -> Plan:
        """The tiers to try, then the fallbacks. Raises Rejected if none can serve the API."""
        request, ladder, now = ex.request, route.ladder, self._clock.now()
        spare = [tier for each in route.fallback if (tier := targets_for(each, request.api))]
        start_by = ex.start_by
        ends_at = ex.deadline.at - ex.grace_s - (ex.reserve_s if spare else 0.0)
        aims: list[RoutingFeedback] = []

        def order(targets: tuple[Target, ...]) -> tuple[Target, ...]:
            if route.selector is None or len(targets) == 1:
                return self._in_turn(targets, request.model) if route.in_turn else self._by_load(targets, request.model)
            session = session_of(ex.arrival.headers) if ex.arrival.headers else b""
            found, aim, notes = route.selector.rank(targets, prompt.request, session, now=now, rng=self._rng)
            if not aims:
                ex.record.add_notes(notes)
            aims.append(aim)
            return tuple([targets[index] for index in found])

        planned = None
        if ladder is not None:
            planned = ladder.plan(prompt.request, tenant=ex.arrival.tenant, role=ex.arrival.role, deadline=ex.deadline,
                                  ends_at=ends_at if request.stream else min(ends_at, start_by),
                                  start_by=start_by, now=now, lane=admitted.lane, order=order, note=ex.record.note)
        if planned is None:
            if not spare:
                raise _unsupported(request)
            ex.record.degrade("fallback")
            return Plan(route, prompt, spare[0], tuple(spare[1:]), lane=admitted.lane, band=admitted.band,
                        share=admitted.share)
        first, *others = [step.targets for step in planned.steps]
        return Plan(route, prompt, first, (*others, *[self._in_turn(tier, request.model) for tier in spare]),
                    aims[0] if aims else None, None, admitted.lane, admitted.band, admitted.share, planned)

    def _by_load(self, targets: tuple[Target, ...], model: str) -> tuple[Target, ...]:
        if len(targets) == 1:
            return targets
        return tuple([targets[index] for index in order_by_load(self._loads(targets, model), self._rng)])

    def _check_owner(self, response_id: str, tenant: str | None) -> None:
        if tenant is None or self._owners is None:
            return
        if self._owners.belongs_to_other(response_id, tenant):
            raise Rejected("The previous response was not found.", code="previous_response_not_found",
                           param="previous_response_id")

    def _in_turn(self, tier: tuple[Target, ...], model: str) -> tuple[Target, ...]:
        return tier if len(tier) == 1 else tuple([tier[index] for index in order_as_listed(self._loads(tier, model),
                                                                                           self._rng)])

    def _is_usable(self, target: Target, model: str) -> bool:
        load = target.member.load_of(self._clock.now(), target.model or model)
        return load.share > 0 or load.needs_probe

    def _loads(self, targets: Iterable[Target], model: str) -> list[CandidateLoad]:
        now = self._clock.now()
        return [target.member.load_of(now, target.model or model) for target in targets]


def _unsupported(request: Request) -> Rejected:
    return Rejected(f"No upstream of {request.model!r} can serve {request.api.value} requests.", code="unsupported_api",
                    param="model")


def _is_ordinary(member: UpstreamState) -> bool:
    return member.own_health.breaker.state is _CLOSED and not member.may_be_suspended


def _explain_health(targets: tuple[Target, ...], model: str, now: float, *, is_last_resort: bool) -> Iterator[str]:
    """How breakers, refused keys and Retry-After changed the order. is_last_resort: a fallback is tried before them all."""
    first_place = "is tried after the fallback" if is_last_resort else "is tried first, as the last resort"
    breakers = [target.member.health_of(target.model or model).breaker for target in targets]
    for n, (target, breaker) in enumerate(zip(targets, breakers, strict=True)):
        why_alone = target.member.suspend_reason(now, target.model or model) if target.member.may_be_suspended else ""
        if why_alone:
            yield f"{target.member.upstream.name} {'is tried last' if n else first_place}: {why_alone}"
        elif breaker.state is not _CLOSED:
            if n:
                place = "is tried last"
            elif any(other.state is _CLOSED for other in breakers):
                place = "is tried first, as a probe"
            else:
                place = first_place
            state = breaker.state.value.replace("_", " ")
            yield f"{target.member.upstream.name} {place}: its breaker is {state}, {breaker.why}"
