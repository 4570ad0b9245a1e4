"""Whether the answer is known already. `NoCache` is the null object: never."""

from typing import Protocol

from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Started


class Cache(Protocol):
    """Finds a whole answer that may be served again."""

    async def find(self, ex: Exchange) -> Started | None:
        """A whole answer, ready to be relayed in the client's dialect, or None."""
        ...


class NoCache:
    """Remembers nothing."""

    __slots__ = ()

    async def find(self, ex: Exchange) -> Started | None:
        """Never found."""
        return None
