"""What caches saved: hits, seconds and money, by route and kind.

    seconds = (usual time to the first token of what was no hit, p50 of the last minutes of that route) - (the hit's own)
    money   = prices x the usage that was kept with the answer: what it had cost to make

The seconds are an estimate: they are what the median request would have waited just then, not what this one would have.
"""

from collections import defaultdict
from collections.abc import Callable
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.events import RequestDone
from stayfast.observe import families as known
from stayfast.observe.totals import Labels, Totals
from stayfast.policy.histogram import LogHistogram

USUAL_FOR_S = 10.0  # how long a median is taken for usual before it is made anew
WINDOW_S = 300.0
KINDS = {"hit": "exact", "stale": "exact", "semantic": "semantic"}


class Saved:
    """Counts it into `totals`. One loop's."""

    __slots__ = ("_clock", "_first_tokens", "_seconds", "_usd", "_usual")

    def __init__(self, totals: Totals, clock: Clock, first_tokens: Callable[[str | None, float], LogHistogram]) -> None:
        self._clock = clock
        self._first_tokens = first_tokens  # of a route, in so many last seconds, without hits
        self._usd: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_USD.name]
        self._seconds: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_S.name]
        self._usual: dict[str, tuple[float, float]] = {}  # by route: until when, seconds

    def take(self, fact: RequestDone) -> None:
        """Count one request on a route with a cache."""
        route, kind = fact.route or "", KINDS.get(fact.cache or "")
        if kind is None or fact.status >= 400:
            return
        if fact.saved_usd:
            self._usd[route, kind] += fact.saved_usd
        if fact.ttft_s is not None:
            saved_s = self._usual_s(route) - fact.ttft_s
            if saved_s > 0:
                self._seconds[route, kind] += saved_s

    def _usual_s(self, route: str) -> float:
        """0 where nothing is known."""
        now = self._clock.now()
        until, seconds = self._usual.get(route, (-inf, 0.0))
        if now >= until:
            seconds = self._first_tokens(route, WINDOW_S).quantile(0.5) or 0.0
            if seconds:
                self._usual[route] = now + USUAL_FOR_S, seconds
        return seconds
