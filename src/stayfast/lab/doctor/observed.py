"""A snapshot from facts, until the gateway's own builder can make one in virtual time."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from stayfast.compose.system import System
from stayfast.core.clock import Clock
from stayfast.core.events import Fact, RequestDone
from stayfast.core.snapshot import WINDOWS_S, Snapshot, Spread, TrafficRow, UpstreamRow
from stayfast.settings import Settings

AT_P99, AT_P50 = (0.985, 0.995), (0.45, 0.55)


class FactSnapshot:
    """A sink that remembers all requests."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._settings = settings
        self._done: list[RequestDone] = []

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, RequestDone) and not fact.role:
            self._done.append(fact)

    def take(self, system: System) -> Snapshot:
        """The snapshot of now."""
        now = self._clock.now()
        rows = []
        for window_s in WINDOWS_S:
            recent = [done for done in self._done if done.ended_at > now - window_s]
            for route in sorted({done.route for done in recent if done.route}):
                mine = [done for done in recent if done.route == route]
                rows.append(_traffic(route, "", window_s, mine))
                rows += [_traffic(route, upstream, window_s, [done for done in mine if done.upstream == upstream])
                         for upstream in sorted({done.upstream for done in mine if done.upstream})]
        upstreams = tuple(UpstreamRow(member.upstream.name, member.upstream.kind) for member in system.registry)
        return Snapshot(self._clock.wall(), "lab", traffic=tuple(rows), upstreams=upstreams,
                        settings=_plain(self._settings))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value if isinstance(value, int | float | bool | str | None) else str(value)


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread()
    return Spread(len(known), _at(known, 0.5), _at(known, 0.95), _at(known, 0.99), known[-1])


def _at(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _traffic(route: str, upstream: str, window_s: float, done: Sequence[RequestDone]) -> TrafficRow:
    attempts = [attempt for one in done for attempt in one.attempts]
    return TrafficRow(
        route, upstream, window_s, len(done),
        n_streamed=sum(one.stream for one in done),
        n_failed=sum(one.status >= 500 or one.status == 429 for one in done),
        ttft_s=_spread(one.ttft_s for one in done),
        e2e_s=_spread(one.ended_at - one.accepted_at for one in done),
        tpot_s=_spread(one.tpot_s for one in done),
        n_attempts=len(attempts),
        n_hedges=sum(attempt.role == "hedge" for attempt in attempts),
        n_hedges_won=sum(attempt.role == "hedge" and not attempt.is_lost for attempt in attempts))
