"""Who may come in now. `AdmitAll` is the null object: everybody, at once."""

from collections.abc import Callable
from typing import Protocol

from stayfast.pipeline.exchange import Exchange

Ticket = Callable[[], None]  # gives the place back; called exactly once


class Admit(Protocol):
    """Waits for a place, or raises Shed."""

    async def admit(self, ex: Exchange) -> Ticket:
        """A place; calling the ticket gives it back."""
        ...


def _nothing_to_give_back() -> None:
    """What an unlimited place costs."""


class AdmitAll:
    """No limits: the request comes in."""

    __slots__ = ()

    async def admit(self, ex: Exchange) -> Ticket:
        """A place for everybody."""
        return _nothing_to_give_back
