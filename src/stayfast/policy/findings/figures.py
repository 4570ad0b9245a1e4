"""What checks share: windows, least samples, a bound for shares, and the wait with a second attempt.

Shares: a share counts as more than a limit if the lower end of its 95 % interval is (Wilson 1927), so few requests prove
nothing:

    low = (p + z*z/2n - z * sqrt(p(1-p)/n + z*z/4n*n)) / (1 + z*z/n)        z = 1.96

A second attempt: S(t) is the share of answers that take longer than t, interpolated in its logarithm between p50, p95 and
p99. With a second attempt after d, if the two are independent:

    P(wait > t) = S(t) * S(t - d)         d = p95: 5 % more calls

Source: "The Tail at Scale" (Dean, Barroso 2013). When wrong: calls that are slow for a reason of the prompt stay slow at the
second attempt; beyond the p99 nothing is known, and S is assumed to stay at 1 %.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import exp, log, sqrt
from typing import NamedTuple

import msgspec

from stayfast.core.findings import Evidence
from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TrafficRow
from stayfast.core.types import FROM_CACHE

NOW_S, HOUR_S = 300.0, 3600.0
MIN_REQUESTS = 50  # for a share or a p50
MIN_FOR_P95 = 100
MIN_FOR_P99 = 200  # two requests lie beyond it
MOST_CACHED = 0.02  # of the requests; fewer move no percentile that a check uses
_Z = 1.96
_N_HALVINGS = 40


def is_more_than(limit: float, x: float, n: float, least: int = MIN_REQUESTS) -> bool:
    """Whether the share x of n is above `limit`, by the lower end of its 95 % interval. False for n under `least`."""
    return n >= least and 0 < x <= n and share_low(x, n) > limit


def share_low(x: float, n: float) -> float:
    """Wilson's lower bound. 0 <= x <= n, n > 0."""
    p, zz = x / n, _Z * _Z
    return (p + zz / (2 * n) - _Z * sqrt(p * (1 - p) / n + zz / (4 * n * n))) / (1 + zz / n)


def number(snapshot: Snapshot, *path: str, default: float) -> float:
    """A number of the settings; `default` if it is missing or no number."""
    found = snapshot.setting(*path)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default


def number_of_route(snapshot: Snapshot, route: str, *path: str, default: float) -> float:
    """The same of a route, or what `defaults` has."""
    return number(snapshot, "routes", route, *path, default=number(snapshot, "defaults", *path, default=default))


def names(snapshot: Snapshot, *path: str) -> list[str]:
    """A list of names in the settings; empty if there is none."""
    found = snapshot.setting(*path)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list | tuple) else []


def deadline_s(snapshot: Snapshot, route: str) -> float:
    """The route's deadline: `deadline`, else timeouts.total_s."""
    total_s = number_of_route(snapshot, route, "timeouts", "total_s", default=600.0)
    return number(snapshot, "routes", route, "deadline", default=total_s)


class Promise(NamedTuple):
    """`slo.ttft`: the share of requests whose first token comes within under_s."""

    under_s: float
    share: float


def promise_of(snapshot: Snapshot, route: str) -> Promise | None:
    """The promise of a route, else of `defaults`. None: the route promises no first token."""
    slo = snapshot.setting("routes", route, "slo")
    ttft = slo.get("ttft") if isinstance(slo, dict) else snapshot.setting("defaults", "slo", "ttft")
    under_s, share = (ttft.get("under_s"), ttft.get("share")) if isinstance(ttft, dict) else (None, None)
    if isinstance(under_s, int | float) and isinstance(share, int | float) and under_s > 0 and 0 < share < 1:
        return Promise(float(under_s), float(share))
    return None


def prompts_of(snapshot: Snapshot) -> dict[str, PromptRow]:
    return {row.route: row for row in snapshot.prompts}


def hour_of(snapshot: Snapshot) -> dict[str, TrafficRow]:
    """The rows of the last hour by route, with the first tokens of calls only."""
    return {row.route: row for row in called_rows(snapshot, HOUR_S)}


def called_rows(snapshot: Snapshot, window_s: float) -> Iterator[TrafficRow]:
    """The rows of whole routes, with the first tokens of calls only: against a cache's median of 1 ms every call is a tail,
    and all are slow where its hits fall. Of several upstreams, those of the one with the most first tokens.
    """
    n_cached: defaultdict[str, int] = defaultdict(int)
    waits: dict[str, Spread] = {}
    for row in snapshot.rows_by_upstream(window_s):
        if row.upstream == FROM_CACHE:
            n_cached[row.route] += row.n
        elif row.route not in waits or row.ttft_s.n > waits[row.route].n:
            waits[row.route] = row.ttft_s
    for row in snapshot.rows(window_s):
        is_cached = n_cached[row.route] > MOST_CACHED * row.n
        yield msgspec.structs.replace(row, ttft_s=waits.get(row.route, Spread())) if is_cached else row


def percentiles(name: str, spread: Spread, source: str, window_s: float = NOW_S) -> tuple[Evidence, ...]:
    """p50, p95 and p99 in seconds, with the number of requests."""
    known = (("p50", spread.p50), ("p95", spread.p95), ("p99", spread.p99))
    return (*(Evidence(f"{name} {one}", value, "s", window_s, source) for one, value in known if value is not None),
            Evidence("requests", spread.n, "", window_s, source))


def share_evidence(name: str, x: float, n: float, source: str, window_s: float = NOW_S) -> tuple[Evidence, ...]:
    """A share, and what it is a share of."""
    return (Evidence(name, x / n if n else 0.0, "ratio", window_s, source), Evidence("of", n, "", window_s, source))


def text_s(seconds: float) -> str:
    """12 ms, 0.41 s, 12 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def text_share(share: float) -> str:
    """0.4 %, 12 %."""
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def hedged_p99(spread: Spread) -> float | None:
    """The p99 if a second attempt were sent after the p95. None: percentiles are missing or contradictory."""
    p50, p95, p99 = spread.p50, spread.p95, spread.p99
    if p50 is None or p95 is None or p99 is None or not 0 < p50 <= p95 <= p99:
        return None
    low, high = 0.0, p99
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        if _longer(middle, p50, p95, p99) * _longer(middle - p95, p50, p95, p99) > 0.01:
            low = middle
        else:
            high = middle
    return high


def _longer(t: float, p50: float, p95: float, p99: float) -> float:
    """S(t)."""
    if t <= 0:
        return 1.0
    for (before, share_before), (after, share) in (((0.0, 1.0), (p50, 0.5)), ((p50, 0.5), (p95, 0.05)),
                                                   ((p95, 0.05), (p99, 0.01))):
        if t < after:
            part = (t - before) / (after - before)
            return exp(log(share_before) + part * (log(share) - log(share_before)))
    return 0.01
