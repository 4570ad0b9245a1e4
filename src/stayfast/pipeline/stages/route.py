"""From the name a client asked for to the upstreams that may answer, best first."""

from collections.abc import Mapping
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Rejected
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Prompt, Route
from stayfast.policy.balance import in_turn, order

ANY_MODEL = "*"


class Router:
    """The routes of one set of settings. Task-safe: holds no state of its own."""

    __slots__ = ("_clock", "_default", "_rng", "_routes")

    def __init__(self, routes: Mapping[str, Route], default: Timeouts, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._routes = dict(routes)
        self._default = default
        self._rng = rng

    @property
    def model_names(self) -> list[str]:
        """What GET /v1/models lists: every route but the wildcard."""
        return [name for name in self._routes if name != ANY_MODEL]

    def timeouts(self, model: str) -> Timeouts:
        """The time that a request for this model has; the defaults when there is no such route (it will be rejected)."""
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        return route.timeouts if route is not None else self._default

    def plan(self, ex: Exchange, prompt: Prompt) -> Plan:
        """Candidates for this request. Raises Rejected: no such route (404), or none of its upstreams speaks the API."""
        request = ex.request
        route = self._routes.get(request.model) or self._routes.get(ANY_MODEL)
        if route is None:
            raise Rejected(f"The model {request.model!r} does not exist here. GET /v1/models lists what does.",
                           status=404, code="model_not_found", param="model")
        ex.route = route.name
        able = [target for target in route.targets if target.member.upstream.can_serve(request.api)]
        if not able:
            raise Rejected(f"No upstream of {request.model!r} can serve {request.api.value} requests.",
                           code="unsupported_api", param="model")
        if len(able) > 1:
            now = self._clock.now()
            loads = [target.member.load(now) for target in able]
            able = [able[index] for index in (in_turn(loads) if route.in_turn else order(loads, self._rng))]
        return Plan(route, prompt, tuple(able))
