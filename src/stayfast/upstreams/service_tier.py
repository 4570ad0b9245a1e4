"""An upstream at one service tier of its provider: an upstream of its own, with its own latencies, limits and breaker."""

import msgspec

from stayfast.core.types import Api
from stayfast.upstreams.base import AnswerStream, Call, RequestedTier, Upstream


class ServiceTierUpstream:
    """Another upstream whose requests name a service tier. Its connections are those of the other one, which closes them."""

    def __init__(self, name: str, upstream: Upstream, tier: RequestedTier) -> None:
        self.name = name
        self.kind = upstream.kind
        self.always_streams = upstream.always_streams
        self.tier = tier
        self._upstream = upstream

    def can_serve(self, api: Api) -> bool:
        return self._upstream.can_serve(api)

    async def open(self, call: Call) -> AnswerStream:
        return await self._upstream.open(msgspec.structs.replace(call, service_tier=self.tier))

    @property
    def inner(self) -> Upstream:
        """The upstream without a service tier."""
        return self._upstream

    def close(self) -> None:
        """The other upstream closes the connections."""

    def __repr__(self) -> str:
        return f"<ServiceTierUpstream {self.name}: {self.tier.word}>"
