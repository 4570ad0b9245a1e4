"""The parts of one route's cache, and the result of one lookup."""

import msgspec

from stayfast.core.types import Api, Usage
from stayfast.pipeline.cache.semantic import SemanticCache
from stayfast.policy.admission.price import Prices, price_of
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.stores.base import Store
from stayfast.wire.canonical import identity_bytes

MAX_IDENTITIES = 1024  # encoded identities in memory


class CacheResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one lookup: hit, semantic, miss, coalesced or bypass. why: the reason of a bypass, one of a few fixed
    words.
    """

    result: str
    age_s: float | None = None  # of the answer that was found
    why: str = ""
    saved_usd: float | None = None  # what the answer had cost
    likeness: tuple[float, float] | None = None  # of a semantic hit: cosine and p of the other question

    def header(self, key: bytes | None = None) -> str:
        """The value of `x-cache`: `hit; kind=exact; age=12; key=6b...`. key: of the answer found."""
        if self.result == "miss":
            return "miss; kind=exact"
        if self.result == "bypass":
            return f"bypass; why={self.why}"
        if self.age_s is None:
            return f"{self.result}; kind=exact"
        age = f"age={int(self.age_s)}; key={key.hex()}" if key is not None else f"age={int(self.age_s)}"
        if self.likeness is None:
            return f"{self.result}; kind=exact; {age}"
        return f"hit; kind=semantic; sim={self.likeness[0]:.3f}; p={self.likeness[1]:.3f}; {age}"


class RouteCache:
    """The cache of one route. A reload makes a new one, with the same store if the same calls make its answers."""

    __slots__ = ("_model", "_prices", "config", "identities", "keep_s", "origin", "refreshing", "semantic", "store")

    def __init__(self, config: CacheConfig, origin: str, store: Store, semantic: SemanticCache | None = None, *,
                 prices: Prices | None = None, model: str | None = None, renewing: set[bytes] | None = None) -> None:
        """origin: everything that determines an answer and is in no request: the route, its upstreams, their models, the
        epoch. prices, model: of the route's first upstream, for the price of a hit; model: None: as the client names it.
        renewing: keys of the calls that are made in the background.
        """
        self.config = config
        self.keep_s = config.storage_s  # how long an answer may be returned
        self.origin = origin
        self.store = store
        self.semantic = semantic  # None: exact matches only
        self._prices = prices or {}
        self._model = model
        self.refreshing: set[bytes] = set() if renewing is None else renewing
        self.identities: dict[tuple[str | None, Api], bytes] = {}  # results of `identity_of`

    def identity_of(self, tenant: str | None, api: Api) -> bytes:
        """What determines an answer besides the body, the same for all requests of a tenant to an API: canonical JSON."""
        client = tenant, api
        identity = self.identities.get(client)
        if identity is None:
            if len(self.identities) >= MAX_IDENTITIES:
                self.identities.clear()
            identity = self.identities[client] = identity_bytes(tenant, self.origin, api)
        return identity

    def worth_usd(self, usage: Usage | None, model: str) -> float | None:
        """The price of an answer with this usage; None: no price is set, or the usage is unknown."""
        price = price_of(self._prices, self._model or model)
        return price.cost_usd(usage) if price is not None and usage is not None and price.has_tier(usage.tier) else None

    def __repr__(self) -> str:
        return f"<RouteCache of {self.origin}: {self.store!r}>"
