"""From a log to a scenario: the requests to replay, the upstreams fitted, the settings, and resamples of all of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from typing import TypeVar

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.lab.plan.engine_fit import fit_with_load
from stayfast.lab.plan.fitting import SeenCall, UpstreamFit, calls_at, fit_upstream
from stayfast.lab.plan.replay import TrafficScenario
from stayfast.lab.plan.replayed import ReplayCall
from stayfast.lab.plan.traffic import RouteTraffic
from stayfast.observe.traffic_rows import TrafficLine
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import HttpUpstream, RouteSettings, Settings

T = TypeVar("T")
HITS = ("hit", "semantic", "stale", "coalesced")
LEAST_CALLS = 30  # at an upstream; with fewer it is left out
_LEAST_PRICED = 50


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """What is known of the gateway of the log. route: None: its settings are guessed from the log."""

    route: RouteSettings | None = None
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    prices: Mapping[str, Price] = field(default_factory=dict)
    limits: Mapping[str, LimitConfig] = field(default_factory=dict)


def known_settings(settings: Settings, route: str) -> KnownSettings:
    """The part of a settings file that concerns a route; nothing if it does not define it."""
    chosen = settings.routes.get(route) or settings.routes.get("*")
    if chosen is None:
        return KnownSettings(admission=settings.admission)
    prices, limits = {}, {}
    for name in chosen.upstreams:
        upstream = settings.upstreams[name]
        found = settings.prices_for(name)
        model = settings.model_for(route, name) or route
        price = found.get(model) or found.get("*")
        if price is not None:
            prices[name] = price
        if isinstance(upstream, HttpUpstream):
            limits[name] = upstream.limit
    return KnownSettings(chosen, settings.admission, prices, limits)


@dataclass(frozen=True, slots=True)
class TrafficModel:
    """The fitted log. calls: the attempts at each upstream, from which resamples are drawn."""

    traffic: RouteTraffic
    scenario: TrafficScenario
    calls: Mapping[str, Sequence[SeenCall]]

    @property
    def streamed_share(self) -> float:
        rows = self.traffic.rows
        return sum(row.is_stream for row in rows) / len(rows)

    @property
    def has_engine(self) -> bool:
        """Whether load slows at least one upstream down."""
        return any(fit.engine is not None for fit in self.scenario.fits.values())

    @property
    def unclear_load(self) -> tuple[str, ...]:
        """The upstreams of which the log does not show whether load slows them down."""
        return tuple(name for name, fit in self.scenario.fits.items() if fit.is_load_unclear)

    @property
    def cached_ratio(self) -> float:
        """Share of input tokens that the providers read from their prompt caches."""
        rows = self.traffic.rows
        return sum(row.n_cached for row in rows) / max(1, sum(row.n_input or 0 for row in rows))

    @property
    def hit_ratio(self) -> float:
        """Share of requests that the route's own cache answered."""
        return sum(row.cache in HITS for row in self.traffic.rows) / len(self.traffic.rows)

    @property
    def repeated_ratio(self) -> float | None:
        """Share of requests whose body came before; None: the log has no marks."""
        marks = [(row.tenant, row.body_mark) for row in self.traffic.rows if row.body_mark]
        return 1 - len(set(marks)) / len(marks) if marks else None

    def draw_days(self, n_days: int, seed: int) -> list[TrafficScenario]:
        """Resamples: other requests at the same instants, and upstreams fitted to resampled attempts.

        Requests are drawn from a resample themselves, so that their spread holds both that of the log and that of the day
        to predict. Over all days together, each attempt is drawn equally often, which removes most of the resampling's own
        error (balanced bootstrap: Davison, Hinkley and Schechtman, 1986).
        """
        rng = Random(seed)
        rows = _deal(range(len(self.scenario.calls)), n_days, rng)
        calls = {name: _deal(seen, n_days, rng) for name, seen in self.calls.items()}
        return [self._draw_day(rows[day], {name: dealt[day] for name, dealt in calls.items()}, rng) for day in range(n_days)]

    def _draw_day(self, rows: Sequence[int], attempts: Mapping[str, Sequence[SeenCall]], rng: Random) -> TrafficScenario:
        calls, n = self.scenario.calls, len(self.scenario.calls)
        counts = Counter(call.content for call in calls)
        drawn = []
        for number, row in enumerate(rng.choices(rows, k=n)):
            call = calls[row]
            content = call.content if counts[call.content] > 1 else n + number
            drawn.append(msgspec.structs.replace(call, at_s=calls[number].at_s, content=content, luck=number))
        fits = {name: _refit(fit, attempts[name], rng) for name, fit in self.scenario.fits.items()}
        return replace(self.scenario, calls=tuple(drawn), fits=fits)


def _deal(items: Sequence[T], n_hands: int, rng: Random) -> list[list[T]]:
    """n_hands samples of as many items, in which each item is n_hands times in all."""
    dealt = list(items) * n_hands
    rng.shuffle(dealt)
    n = len(items)
    return [dealt[hand * n:(hand + 1) * n] for hand in range(n_hands)]


def _refit(fit: UpstreamFit, calls: Sequence[SeenCall], rng: Random) -> UpstreamFit:
    """The same kind of model, fitted to other attempts; of an engine only the waits and failures are drawn again."""
    again = fit_upstream(fit.name, calls, fit)
    if fit.engine is not None:
        return replace(fit, first_s=tuple(sorted(rng.choices(fit.first_s, k=len(fit.first_s)))),
                       fail_share=again.fail_share, hang_share=again.hang_share)
    return replace(again, most_in_flight=fit.most_in_flight, is_load_unclear=fit.is_load_unclear)


def build_model(traffic: RouteTraffic, known: KnownSettings | None = None) -> TrafficModel:
    """Fit everything that the log shows."""
    known = known or KnownSettings()
    calls, fits = {}, {}
    for name in traffic.upstreams:
        seen = calls_at(traffic.rows, name)
        if len(seen) >= LEAST_CALLS:
            calls[name] = seen
            fits[name] = fit_with_load(name, seen, fit_upstream(name, seen))
    route = known.route or _guess_route(traffic.rows, tuple(fits))
    route = replace(route, upstreams=tuple(fits), weights={name: weight for name, weight in route.weights.items()
                                                           if name in fits})
    prices = {name: price for name in fits if (price := known.prices.get(name) or _fit_price(traffic.rows, name))}
    scenario = TrafficScenario(tuple(_replay_calls(traffic.rows)), fits, route, known.admission, prices, known.limits)
    return TrafficModel(traffic, scenario, calls)


def _guess_route(rows: Sequence[TrafficLine], upstreams: tuple[str, ...]) -> RouteSettings:
    """Default settings; hedging and cache are on if the log shows hedges and cache results, and attempts time out as there.
    """
    hedges = any(trial.role == "hedge" for row in rows for trial in row.trials)
    has_cache = any(row.cache for row in rows)
    hung_s = [trial.took_s for row in rows for trial in row.trials if trial.fault == "timeout"]
    timeouts = Timeouts(first_token_s=round(median(hung_s), 1)) if hung_s else Timeouts()
    return RouteSettings(upstreams, timeouts=timeouts, hedge=HedgeConfig(mode="auto" if hedges else "off"),
                         cache=CacheConfig(mode="exact" if has_cache else "off"))


def _replay_calls(rows: Sequence[TrafficLine]) -> list[ReplayCall]:
    """Requests without token counts (failed ones) take those of another one."""
    rng = Random(len(rows))
    whole = [row for row in rows if row.n_input is not None and row.n_output is not None] or list(rows)
    contents: dict[tuple[str, str], int] = {}
    calls: list[ReplayCall] = []
    for number, row in enumerate(rows):
        like = row if row.n_input is not None and row.n_output is not None else rng.choice(whole)
        content = number
        if row.body_mark:
            content = contents.setdefault((row.tenant, row.body_mark), number)
        elif row.cache in HITS and calls:
            content = rng.choice(calls).content
        calls.append(ReplayCall(row.arrived_at - rows[0].arrived_at, like.n_input or 1, like.n_cached, like.n_output or 1,
                                row.is_stream, content, row.tenant, number))
    return calls


def _fit_price(rows: Sequence[TrafficLine], upstream: str) -> Price | None:
    """Prices per token by least squares over the costs in the log; None if too few requests have one."""
    priced = [row for row in rows if row.cost_usd and row.upstream == upstream and not row.trials]
    if len(priced) < _LEAST_PRICED:
        return None
    features = [(max(0, (row.n_input or 0) - row.n_cached) / 1e6, row.n_cached / 1e6, (row.n_output or 0) / 1e6)
                for row in priced]
    has_cached = any(cached for _, cached, _ in features)
    columns = [0, 1, 2] if has_cached else [0, 2]
    solved = _solve([[sum(one[a] * one[b] for one in features) for b in columns] for a in columns],
                    [sum(one[a] * (row.cost_usd or 0.0) for one, row in zip(features, priced, strict=True))
                     for a in columns])
    if solved is None:
        return None
    usd = [max(0.0, value) for value in solved]
    return Price(usd[0], usd[-1], usd[1] if has_cached else None)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """A small system of linear equations, by elimination; None if it is singular."""
    n = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for at in range(n):
        pivot = max(range(at, n), key=lambda row: abs(rows[row][at]))
        if abs(rows[pivot][at]) < 1e-18:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for row in range(n):
            if row != at:
                factor = rows[row][at] / rows[at][at]
                rows[row] = [value - factor * top for value, top in zip(rows[row], rows[at], strict=True)]
    return [rows[at][n] / rows[at][at] for at in range(n)]
