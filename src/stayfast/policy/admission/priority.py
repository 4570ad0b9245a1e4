"""Who goes first when not everybody can.

Problem: under load a batch job and a person at a screen wait in one queue, and a provider's bad minute turns every SDK into
a source of repeats that stand before first tries. Rule: what a request is worth is a declared score, a sum of points; the
score decides the band, and bands are served strictly in order.

    score = tier + the tenant's own points + (real-time) + (retry) + (batch)
    band  = premium  if score >= 100,  realtime if >= 50,  standard if >= 0,  low if > -100,  else batch

Order alone comes too late for whoever finds all places taken by what cannot be stopped any more. So a lower band may fill
the places only up to a lower ceiling, and a higher one finds room without waiting:

    ceiling(band) = n_places * (1 - reserved_share * (number of higher bands with traffic))

"With traffic" means a request within the last 30 s, so that places are held back only for somebody who does come.
Source: hold-back ceilings are llm-d's (`c_i = max - i(max-min)/(N-1)`); that they need live traffic above is ours.
When wrong: points are claims. A tenant may call everything real-time; what keeps it from gaining by that at the others'
cost is its quota and its fair share, not its band.
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
    """What a tenant is to its operator."""

    PREMIUM = "premium"
    STANDARD = "standard"
    BATCH = "batch"


class Urgency(Word):
    """What a request says of itself. A stream that says nothing is real-time: somebody reads along."""

    REALTIME = "realtime"
    PLAIN = "plain"
    BATCH = "batch"


BANDS = ("premium", "realtime", "standard", "low", "batch")  # first served first
FLOORS = (100, 50, 0, -99)  # the least score of each but the last
_HIGHER = tuple(tuple(range(band)) for band in range(len(BANDS)))


def _points(doc: str) -> SettingDoc:
    return SettingDoc(doc, minimum=-MAX_POINTS, maximum=MAX_POINTS)


@dataclass(frozen=True, slots=True)
class Points:
    """What each property of a request adds to its score."""

    premium: Annotated[int, _points("A tenant of tier premium.")] = 100
    realtime: Annotated[int, _points("A stream, or `x-stayfast-priority: realtime`.")] = 75
    retry: Annotated[int, _points("A repeat: x-stainless-retry-count above 0, or a known idempotency key.")] = -50
    batch: Annotated[int, _points("A tenant of tier batch, or `x-stayfast-priority: batch`.")] = -200

    def __post_init__(self) -> None:
        check_bounds(self)


def band_of(score: int) -> int:
    """The index into BANDS."""
    return next((band for band, floor in enumerate(FLOORS) if score >= floor), len(FLOORS))


class PriorityClass:
    """The bands of one tenant's requests, worked out once. Immutable."""

    __slots__ = ("_bands",)

    def __init__(self, points: Points, tier: TenantTier, extra: int) -> None:
        base = extra + {TenantTier.PREMIUM: points.premium, TenantTier.STANDARD: 0, TenantTier.BATCH: points.batch}[tier]
        worth = {Urgency.REALTIME: points.realtime, Urgency.PLAIN: 0, Urgency.BATCH: points.batch}
        self._bands = {urgency: (band_of(base + more), band_of(base + more + points.retry))
                       for urgency, more in worth.items()}

    def band(self, urgency: Urgency, *, is_retry: bool) -> int:
        return self._bands[urgency][is_retry]


class Repeats:
    """Idempotency keys that were seen before: whoever repeats one, retries. Remembers the newest."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def has_seen(self, tenant: str, key: str) -> bool:
        """Whether this tenant has sent this key before; from now on it has."""
        mark = hash((tenant, key))
        if mark in self._seen:
            return True
        self._seen[mark] = None
        if len(self._seen) > MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return False


class HoldBack:
    """The ceilings of all bands over one set of places. Pure state; instants never go back."""

    __slots__ = ("n_places", "seen_at", "share", "sure")

    def __init__(self, n_places: int, share: float) -> None:
        self.n_places = n_places
        self.share = share
        self.seen_at = [float("-inf")] * len(BANDS)  # when a request of each band came last
        self.sure = tuple([min(n_places, self._ceiling(band)) for band in range(len(BANDS))])  # ceilings at their lowest

    def ceiling(self, band: int, now: float) -> int:
        """The most places that may be taken once a request of this band is in; never less than one."""
        seen_at, since = self.seen_at, now - WITH_TRAFFIC_S
        n_higher = 0
        for higher in _HIGHER[band]:
            if seen_at[higher] > since:
                n_higher += 1
        return self._ceiling(n_higher)

    def _ceiling(self, n_higher: int) -> int:
        return self.n_places if not n_higher else max(1, int(self.n_places * (1.0 - self.share * n_higher) + _ROUNDING))

    def __repr__(self) -> str:
        return f"<HoldBack {self.share:g} of {self.n_places} places for each band above>"
