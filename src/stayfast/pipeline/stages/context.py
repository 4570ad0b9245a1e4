"""What is really sent: fitted to the model and to the time. `AsSent` is the null object: what the client sent."""

from typing import Protocol

from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Prompt


class Context(Protocol):
    """Fits a request's content into its allowance."""

    async def fit(self, ex: Exchange) -> Prompt:
        """The prompt to send; raises Rejected when it cannot fit."""


class AsSent:
    """Changes nothing."""

    __slots__ = ()

    async def fit(self, ex: Exchange) -> Prompt:
        return Prompt(ex.request)


class LaidOut:
    """In an order that providers' caches can remember, on the routes that wish it."""

    __slots__ = ()

    async def fit(self, ex: Exchange) -> Prompt:
        if ex.terms.prefix is None:
            return Prompt(ex.request)
        return Prompt(*ex.terms.prefix.lay(ex.request))
