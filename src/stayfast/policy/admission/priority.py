"""Which requests go first when there is not enough capacity.

Problem: under load, batch jobs and interactive users wait in one queue, and a provider's bad minute fills it with retries.
Rule: each request has a score, a sum of declared points. The score selects a band, and bands are served strictly in order.

    score = tier + the tenant's own points + (real-time) + (retry) + (batch)
    band  = premium  if score >= 100,  realtime if >= 50,  standard if >= 0,  low if > -100,  else batch

If long requests of lower bands hold all places, order does not help a high band. So a lower band has a lower ceiling, for
each higher band with a request within the last 30 s:

    ceiling(band) = n_places * (1 - hold_back * (number of higher bands with traffic))

Source: hold-back ceilings are llm-d's (`c_i = max - i(max-min)/(N-1)`); the condition on live traffic is ours.
When wrong: points are claims. A tenant may call everything real-time; only its quota and its fair share limit the effect.
"""

from dataclasses import dataclass
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Word

WITH_TRAFFIC_S = 30.0
MAX_POINTS = 10_000
_ROUNDING = 1e-9
MAX_REMEMBERED = 10_000  # idempotency keys


class TenantTier(Word):
    PREMIUM = "premium"
    STANDARD = "standard"
    BATCH = "batch"


class Urgency(Word):
    """The urgency that a request declares. A stream without a declaration is real-time, as a user is probably reading."""

    REALTIME = "realtime"
    PLAIN = "plain"
    BATCH = "batch"


BANDS = ("premium", "realtime", "standard", "low", "batch")  # in the order of service
LOWEST_BAND = len(BANDS) - 1  # that of all jobs
FLOORS = (100, 50, 0, -99)  # the least score of each band but the last
_HIGHER = tuple(tuple(range(band)) for band in range(len(BANDS)))


def _points(doc: str) -> SettingDoc:
    return SettingDoc(doc, minimum=-MAX_POINTS, maximum=MAX_POINTS)


@dataclass(frozen=True, slots=True)
class Points:
    premium: Annotated[int, _points("A tenant of tier premium.")] = 100
    realtime: Annotated[int, _points("A stream, or `x-stayfast-priority: realtime`.")] = 75
    retry: Annotated[int, _points("A repeat: x-stainless-retry-count above 0, or a known idempotency key.")] = -50
    batch: Annotated[int, _points("A tenant of tier batch, or `x-stayfast-priority: batch`.")] = -200

    def __post_init__(self) -> None:
        check_bounds(self)


def band_of(score: int) -> int:
    """The band of a score, as an index into BANDS."""
    return next((band for band, floor in enumerate(FLOORS) if score >= floor), len(FLOORS))


class PriorityClass:
    __slots__ = ("_bands",)

    def __init__(self, points: Points, tier: TenantTier, extra: int) -> None:
        base = extra + {TenantTier.PREMIUM: points.premium, TenantTier.STANDARD: 0, TenantTier.BATCH: points.batch}[tier]
        worth = {Urgency.REALTIME: points.realtime, Urgency.PLAIN: 0, Urgency.BATCH: points.batch}
        self._bands = {urgency: (band_of(base + more), band_of(base + more + points.retry))
                       for urgency, more in worth.items()}

    def band_for(self, urgency: Urgency, *, is_retry: bool) -> int:
        return self._bands[urgency][is_retry]


class RecentKeys:
    """Recent idempotency keys, to recognise retries. Bounded."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def is_repeat(self, tenant: str, key: str) -> bool:
        """Whether this tenant has sent this key before. Remembers it."""
        mark = hash((tenant, key))
        if mark in self._seen:
            return True
        self._seen[mark] = None
        if len(self._seen) > MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return False


class HoldBack:
    """The ceilings of all bands over one set of places. Pure state; instants never go back."""

    __slots__ = ("guaranteed", "n_places", "seen_at", "share")

    def __init__(self, n_places: int, share: float) -> None:
        self.n_places = n_places
        self.share = share
        self.seen_at = [float("-inf")] * len(BANDS)  # last request of each band
        self.guaranteed = tuple([min(n_places, self._ceiling(band)) for band in range(len(BANDS))])  # the lowest ceilings

    def ceiling(self, band: int, now: float) -> int:
        """The most places in use after a request of this band is admitted; at least one."""
        seen_at, since = self.seen_at, now - WITH_TRAFFIC_S
        n_higher = 0
        for higher in _HIGHER[band]:
            if seen_at[higher] > since:
                n_higher += 1
        return self._ceiling(n_higher)

    def _ceiling(self, n_higher: int) -> int:
        return self.n_places if not n_higher else max(1, int(self.n_places * (1.0 - self.share * n_higher) + _ROUNDING))
