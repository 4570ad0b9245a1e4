"""The interface of the store through which gateways exchange what they share."""

from typing import NamedTuple, Protocol


class FleetUnavailable(Exception):
    """The store did not answer in time, or refused. Its text names the kind of error only."""


class LiveGateway(NamedTuple):
    """One live gateway. `seen_s_ago`: since its last record, by the store's clock."""

    id: str
    seen_s_ago: float
    record: bytes


class FleetEvent(NamedTuple):
    """One event. Positions are ordered as the events are."""

    position: str
    data: bytes


class FleetStore(Protocol):
    """All methods raise FleetUnavailable, and nothing else."""

    async def beat(self, gateway: str, record: bytes, ttl_s: float) -> list[LiveGateway]:
        """Write the record of a gateway, which is live for `ttl_s` more. Returns the live gateways, this one too."""

    async def list_gateways(self, ttl_s: float) -> list[LiveGateway]:
        """The live gateways. `ttl_s`: as in `beat`."""

    async def leave(self, gateway: str) -> None:
        """The gateway ends: it is no longer live."""

    async def exchange_times(self, gateway: str, times: bytes) -> dict[str, bytes]:
        """Replace the histograms of a gateway. Returns the histograms of all live ones."""

    async def publish(self, event: bytes) -> None:
        """Append an event for all gateways."""

    async def position_before(self, seconds: float) -> str:
        """A position before all events of the last `seconds`."""

    async def read_events(self, after: str) -> list[FleetEvent]:
        """The events after a position; waits for about a second if there is none."""

    async def reply(self, call: str, reply: bytes) -> None:
        """Reply to the event with this call id."""

    async def take_replies(self, call: str) -> list[bytes]:
        """The new replies to an event of this gateway. Does not wait."""

    async def claim_epoch(self, route: str, epoch: str) -> bool:
        """Make `epoch` the epoch of a route. Returns whether it had another one; False if it had none."""

    async def close(self) -> None: ...
