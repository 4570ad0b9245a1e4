"""How many jobs of each route this process may claim now (policy/jobs/room.py), from the live state of the upstreams."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from stayfast.core.clock import Clock
from stayfast.pipeline.plan import Route
from stayfast.pipeline.stages.admit.admission import Admission, Admit
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.jobs.room import RESERVE_SHARE, UpstreamUse, room_for_jobs
from stayfast.upstreams.state.job_places import JobPlaces
from stayfast.upstreams.state.upstream_state import UpstreamState

MAX_CLAIM = 32  # jobs of a route in one claim: the next round sees what they did


class RunningRoutes(Protocol):
    """The system that serves now."""

    def routes(self) -> Mapping[str, Route]: ...

    def admission(self) -> Admit | None:
        """None: no system runs yet."""


class JobCapacity:
    """The room of one process. Belongs to one loop."""

    __slots__ = ("_clock", "_running", "_turn")

    def __init__(self, running: RunningRoutes, clock: Clock) -> None:
        self._running = running
        self._clock = clock
        self._turn = 0  # so that no route is always the first

    def route_of(self, model: str) -> str:
        """The name of the route of a model, for metrics."""
        return model if model in self._running.routes() else ANY_MODEL

    def room(self, waiting: Iterable[str], n_most: int, idle: Collection[str] = (), *, n_active: int = 0
             ) -> tuple[dict[str, int], bool]:
        """The most jobs to claim, by route, and whether some route may have jobs but no room. waiting: models of queued
        jobs, for a route to any model. idle: routes that are known to have no queued job. n_most: over all routes.
        n_active: claimed jobs without an outcome; those that no upstream has yet will need a place, too.
        """
        routes = self._running.routes()
        models = [name for name in routes if name != ANY_MODEL]
        if ANY_MODEL in routes:
            models += [model for model in waiting if model not in routes]
        models = [model for model in models if model not in idle]
        n_most = min(n_most, self._n_admitted())
        if not models or n_most <= 0:
            return {}, bool(models)
        self._turn += 1
        at = self._turn % len(models)
        models = models[at:] + models[:at]
        room = self._share_out(models, routes, n_most, n_active)
        return room, len(room) < len(models)

    def _share_out(self, models: Sequence[str], routes: Mapping[str, Route], n_most: int,
                   n_active: int) -> dict[str, int]:
        """Divide the room of each upstream evenly among the routes to it."""
        members = {model: [target.member for target in (routes.get(model) or routes[ANY_MODEL]).targets] for model in models}
        at_upstreams = {target.member for route in routes.values() for tier in (route.targets, *route.fallback)
                        for target in tier}
        n_starting = max(0, n_active - sum(self.places_of(member).n_jobs for member in at_upstreams))
        n_left = {member: max(0, self.room_at(member) - n_starting) for model in models for member in members[model]}
        n_sharing: dict[UpstreamState, int] = dict.fromkeys(n_left, 0)
        for model in models:
            for member in members[model]:
                n_sharing[member] += 1
        room = {}
        for model in models:
            n = 0
            for member in members[model]:
                n_here = -(-n_left[member] // n_sharing[member])
                n_sharing[member] -= 1
                n_left[member] -= n_here
                n += n_here
            n = min(n, MAX_CLAIM, n_most)
            n_most -= n
            if n:
                room[model] = n
        return room

    def room_at(self, member: UpstreamState) -> int:
        """How many more jobs one upstream has room for."""
        now = self._clock.now()
        places = self.places_of(member)
        load = member.load_of(now)
        limits = [limiter.limit.value for limiter in member.all_limiters]
        limit = min(limits) if member.lanes is None else min(limits[1:])
        n_in_flight = member.n_in_flight
        common = member.whole_limiter.shared_limit
        if common is not None and limit != inf:
            n_in_flight = common.n_effective(n_in_flight, limit)
        use = UpstreamUse(limit, n_in_flight, places.n_jobs, is_waited_for=member.n_waiting > 0)
        allowance = places.allowance
        room = room_for_jobs(use, allowance.n_allowed(now, limit, use.n_jobs), is_quiet=allowance.is_quiet(now))
        if load.share == 0.0:  # its breaker is open, or it is suspended: one job may be the probe
            return min(room, int(load.needs_probe and not places.n_jobs))
        return room

    def places_of(self, member: UpstreamState) -> JobPlaces:
        limiter = member.whole_limiter
        if limiter.job_places is None:
            limiter.job_places = JobPlaces(self._clock.now())
        return limiter.job_places

    def _n_admitted(self) -> int:
        """Jobs that the gateway's own limit of requests has room for."""
        admit = self._running.admission()
        if admit is None:
            return 0
        if not isinstance(admit, Admission):
            return 1 << 30
        places = admit.places
        if places.n_waiting or admit.is_shedding(self._clock.now()):
            return 0
        n_taken = places.n_taken if places.common is None else places.common.n_effective(places.n_taken, places.n_places)
        return int(places.n_places * (1.0 - RESERVE_SHARE)) - n_taken
