"""Client connections without a request, and which of them is closed for the sake of a new one.

Problem: a connection costs a descriptor and some KiB whether or not a request ever comes on it, and opening one takes no
key. Rule: a connection is silent until the head of a request on it was accepted. Of silent ones there are at most so many,
in all and from one address; above that the oldest go, once they are `GRACE_S` old: an honest client's first bytes
follow its handshake. Where every place is taken, the oldest silent connection goes, else the one idle for longest between
two requests; a connection with a request under way never does.

When wrong: a proxy is one address. One that opens hundreds of connections ahead of need and leaves them silent for more than
GRACE_S meets the cap; it sees them closed, and opens others. Of IPv6 a whole /64 is one address, because one host has it.
"""

from collections.abc import Hashable, Iterator
from ipaddress import IPv6Address, IPv6Network
from typing import Generic, Protocol, TypeVar

GRACE_S = 1.0


class Closable(Protocol):
    """A connection as far as it matters here."""

    def abort(self) -> None:
        """Close at once."""

    def close(self) -> None:
        """Close once everything written has been sent."""


C = TypeVar("C", bound=Closable)


class WaitingConnections(Generic[C]):
    """One listener's. Every method but `surplus` takes constant time."""

    __slots__ = ("_by_address", "_idle", "_silent")

    def __init__(self) -> None:
        self._silent: dict[C, tuple[float, Hashable]] = {}  # since when, and from where; the oldest first
        self._idle: dict[C, None] = {}
        self._by_address: dict[Hashable, dict[C, None]] = {}

    @property
    def n_silent(self) -> int:
        return len(self._silent)

    def opened(self, connection: C, address: Hashable, now: float) -> None:
        """A new one. `address`: None where it has none."""
        self._silent[connection] = now, address
        if address is not None:
            self._by_address.setdefault(address, {})[connection] = None

    def requested(self, connection: C) -> None:
        """A request was accepted on it, or it is gone."""
        if connection in self._idle:
            del self._idle[connection]
        elif connection in self._silent:
            _, address = self._silent.pop(connection)
            if address is not None:
                same = self._by_address[address]
                del same[connection]
                if not same:
                    del self._by_address[address]

    def answered(self, connection: C) -> None:
        """It waits for its next request; a silent one stays silent, after a refusal."""
        if connection not in self._silent:
            self._idle[connection] = None

    def close_oldest(self) -> bool:
        """Close one for a new one; whether there was any to close."""
        for connection in self._silent:
            self.requested(connection)
            connection.abort()
            return True
        for connection in self._idle:
            self.requested(connection)
            connection.close()
            return True
        return False

    def close_surplus(self, address: Hashable, most: int, most_per_address: int, now: float) -> int:
        """Close the silent ones, GRACE_S old or older, that are more than `most`, or of `address` more than
        `most_per_address` (0: any number); returns how many.
        """
        surplus = list(_first(self._silent, len(self._silent) - most))
        if most_per_address and address is not None:
            same = self._by_address.get(address, {})
            surplus += _first(same, len(same) - most_per_address)
        n = 0
        for connection in surplus:
            if connection in self._silent and self._silent[connection][0] <= now - GRACE_S:
                self.requested(connection)
                connection.abort()
                n += 1
        return n

    def __repr__(self) -> str:
        return f"<WaitingConnections: {len(self._silent)} silent, {len(self._idle)} idle>"


def _first(connections: dict[C, object] | dict[C, None] | dict[C, tuple[float, Hashable]], n: int) -> Iterator[C]:
    for connection, _ in zip(connections, range(n), strict=False):
        yield connection


def address_of(peer: object) -> str | None:
    """What of a socket's peer name counts as one address, readable: of IPv6 its /64; None where it has none."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return None
    host = str(peer[0])
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))  # mapped: IPv4 on a listener for both
