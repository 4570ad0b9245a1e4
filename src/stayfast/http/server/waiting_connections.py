"""Client connections without a request, and the choice of one to close when a new connection needs room.

Problem: each connection takes a descriptor and some KiB even if it never carries a request, and opening one needs no key.
Rule: a connection is silent until the head of a request on it has been accepted. Silent connections are limited in total and
per address. Above a limit the oldest are closed once they are `GRACE_S` old, because an honest client sends its first bytes
right after the handshake. At the connection limit the oldest silent connection is closed, else the one idle longest between
two requests; never one with a running request.

When wrong: a proxy counts as one address. If it opens hundreds of connections in advance, those silent for more than GRACE_S
are closed; it can open others. An IPv6 /64 counts as one address, because one host usually has all of it.
"""

from collections.abc import Hashable
from ipaddress import IPv6Address, IPv6Network
from itertools import islice
from typing import Generic, Protocol, TypeVar

GRACE_S = 1.0


class Closable(Protocol):
    def abort(self) -> None:
        """Close at once."""

    def close(self) -> None:
        """Close after all written data has been sent."""


C = TypeVar("C", bound=Closable)


class WaitingConnections(Generic[C]):
    """The silent and idle connections of one listener. All methods except `close_surplus` take constant time."""

    __slots__ = ("_by_address", "_idle", "_silent")

    def __init__(self) -> None:
        self._silent: dict[C, tuple[float, Hashable]] = {}  # opening time and address; the oldest first
        self._idle: dict[C, None] = {}
        self._by_address: dict[Hashable, dict[C, None]] = {}

    @property
    def n_silent(self) -> int:
        return len(self._silent)

    @property
    def n_addresses(self) -> int:
        """Addresses with silent connections."""
        return len(self._by_address)

    def add(self, connection: C, address: Hashable, now: float) -> None:
        """Add a new connection. `address`: None if it has none."""
        self._silent[connection] = now, address
        if address is not None:
            self._by_address.setdefault(address, {})[connection] = None

    def remove(self, connection: C) -> None:
        """Remove a connection: a request on it was accepted, or it is closed."""
        if connection in self._idle:
            del self._idle[connection]
        elif connection in self._silent:
            _, address = self._silent.pop(connection)
            if address is not None:
                same = self._by_address[address]
                del same[connection]
                if not same:
                    del self._by_address[address]

    def mark_idle(self, connection: C) -> None:
        """Mark as idle: the connection waits for its next request. After a rejected request it stays silent."""
        if connection not in self._silent:
            self._idle[connection] = None

    def close_oldest(self) -> bool:
        """Close one connection to make room. Returns whether there was one."""
        for connection in self._silent:
            self.remove(connection)
            connection.abort()
            return True
        for connection in self._idle:
            self.remove(connection)
            connection.close()
            return True
        return False

    def close_surplus(self, address: Hashable, most: int, most_per_address: int, now: float) -> int:
        """Close silent connections above `most` in total and `most_per_address` (0: no limit) from `address`, if at least
        GRACE_S old. Returns the number closed.
        """
        surplus = list(islice(self._silent, max(0, len(self._silent) - most)))
        if most_per_address and address is not None:
            same = self._by_address.get(address, {})
            surplus += islice(same, max(0, len(same) - most_per_address))
        n = 0
        for connection in surplus:
            if connection in self._silent and self._silent[connection][0] <= now - GRACE_S:
                self.remove(connection)
                connection.abort()
                n += 1
        return n

    def __repr__(self) -> str:
        return f"<WaitingConnections: {len(self._silent)} silent, {len(self._idle)} idle>"


def limited_address(peer: object) -> str | None:
    """The address that limits apply to, from a socket's peer name: an IPv4 address or an IPv6 /64; None without one."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return None
    host = str(peer[0])
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))  # mapped: IPv4 on a dual-stack listener
