"""What the cache of one route is made of, and what it has to say of a request."""

from typing import TYPE_CHECKING

import msgspec

from stayfast.pipeline.store import Store
from stayfast.policy.cache import CacheConfig

if TYPE_CHECKING:
    from stayfast.pipeline.flight import Flight

FlightKey = tuple[bytes, bool, bool]  # the question's key; streamed; with usage at its end


class Cached(msgspec.Struct, frozen=True, gc=False):
    """What became of one look-up: hit, miss, coalesced or bypass, with its reason in a word or two of ours."""

    result: str
    age_s: float | None = None  # of the answer that was found
    why: str = ""

    @property
    def header(self) -> str:
        """As the client is told: `hit; kind=exact; age=12`."""
        if self.result == "bypass":
            return f"bypass; why={self.why}"
        age = f"; age={int(self.age_s)}" if self.age_s is not None else ""
        return f"{self.result}; kind=exact{age}"


class Caching:
    """One route's. Changed on one loop; outlives a reload that leaves the route alone.

    origin: all that decides an answer and stands in no request: the route, its upstreams, their models, the epoch.
    """

    __slots__ = ("config", "flights", "origin", "store")

    def __init__(self, config: CacheConfig, origin: str, store: Store) -> None:
        self.config = config
        self.origin = origin
        self.store = store
        self.flights: dict[FlightKey, Flight] = {}  # those that others may join

    def __repr__(self) -> str:
        return f"<Caching of {self.origin}: {self.store!r}, {len(self.flights)} in flight>"
