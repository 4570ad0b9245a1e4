"""From the name a client asked for to the upstreams that may answer, best first."""

from collections.abc import Iterable, Mapping
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Prompt, Route, Target, Terms
from stayfast.policy.balance import Load, in_turn, order

ANY_MODEL = "*"


class Router:
    """The routes of one set of settings. Task-safe: holds no state of its own."""

    __slots__ = ("_clock", "_default", "_rng", "_routes")

    def __init__(self, routes: Mapping[str, Route], default: Terms, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._routes = dict(routes)
        self._default = default
        self._rng = rng

    @property
    def routes(self) -> Mapping[str, Route]:
        """All of them by name."""
        return self._routes

    @property
    def model_names(self) -> list[str]:
        """What GET /v1/models lists: every route but the wildcard."""
        return [name for name in self._routes if name != ANY_MODEL]

    def terms(self, model: str) -> Terms:
        """What holds for a request for this model; the defaults when there is no such route (it will be rejected)."""
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        return route.terms if route is not None else self._default

    def plan(self, ex: Exchange, prompt: Prompt) -> Plan:
        """Candidates for this request. Raises Rejected: no such route (404), or none of its upstreams speaks the API."""
        request = ex.request
        route = self._routes.get(request.model) or self._routes.get(ANY_MODEL)
        if route is None:
            raise Rejected(f"The model {request.model!r} does not exist here. GET /v1/models lists what does.",
                           status=404, code="model_not_found", param="model")
        ex.route = route.name
        able = _able(route.targets, request.api)
        spare = _able(route.fallback, request.api) if route.fallback else ()
        if not able:
            if not spare:
                raise Rejected(f"No upstream of {request.model!r} can serve {request.api.value} requests.",
                               code="unsupported_api", param="model")
            able, spare = spare, ()
            ex.degraded = "fallback"
        if len(able) > 1:
            loads = self._loads(able)
            pick = in_turn if route.in_turn else order
            able = tuple([able[index] for index in pick(loads, self._rng)])
        if spare:
            if len(spare) > 1:
                spare = tuple([spare[index] for index in in_turn(self._loads(spare), self._rng)])
            if not self._may_go(able[0]) and self._may_go(spare[0]):
                able, spare = spare, able  # all are left alone: the fallback first, and they are the last resort
                ex.degraded = "fallback"
        return Plan(route, prompt, able, spare)

    def _may_go(self, target: Target) -> bool:
        load = target.member.load(self._clock.now())
        return load.share > 0 or load.wants_probe

    def _loads(self, targets: Iterable[Target]) -> list[Load]:
        now = self._clock.now()
        return [target.member.load(now) for target in targets]


def _able(targets: tuple[Target, ...], api: Api) -> tuple[Target, ...]:
    return tuple([target for target in targets if target.member.upstream.can_serve(api)])
