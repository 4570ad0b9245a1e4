"""Connections without a request: which are closed, and when."""

from stayfast.http.server.waiting_connections import GRACE_S, WaitingConnections, limited_address


class Client:
    """A connection that notes its end."""

    def __init__(self) -> None:
        self.end = ""

    def abort(self) -> None:
        self.end = "aborted"

    def close(self) -> None:
        self.end = "closed"


def opened(waiting: WaitingConnections[Client], n: int, address: str, now: float) -> list[Client]:
    """So many new connections from one address."""
    clients = [Client() for _ in range(n)]
    for client in clients:
        waiting.add(client, address, now)
    return clients


def test_waiting_oldest_of_one_address_are_closed() -> None:
    """Those above its own cap, however few there are in all."""
    waiting: WaitingConnections[Client] = WaitingConnections()
    others, crowd = opened(waiting, 3, "a", 0.0), opened(waiting, 5, "b", 0.0)
    assert waiting.close_surplus("b", 100, 2, GRACE_S) == 3
    assert [client.end for client in crowd] == ["aborted"] * 3 + ["", ""]
    assert not any(client.end for client in others)
    assert waiting.close_surplus("a", 100, 0, GRACE_S) == 0  # 0: any number


def test_waiting_oldest_of_all_are_closed_above_the_total_limit() -> None:
    """For any addresses; a connection without an address only counts here."""
    waiting: WaitingConnections[Client] = WaitingConnections()
    first, nameless = opened(waiting, 1, "a", 0.0), Client()
    waiting.add(nameless, None, 0.0)
    last = opened(waiting, 2, "b", 0.0)
    assert waiting.close_surplus(None, 2, 1, GRACE_S) == 2
    assert [client.end for client in (*first, nameless, *last)] == ["aborted", "aborted", "", ""]


def test_waiting_burst_within_the_grace_time_is_not_closed() -> None:
    """A thousand connect in one turn of the loop, and their first bytes are not read yet: none is older than the grace."""
    waiting: WaitingConnections[Client] = WaitingConnections()
    burst = opened(waiting, 1000, "a", 5.0)
    assert waiting.close_surplus("a", 10, 10, 5.0 + GRACE_S / 2) == 0
    for client in burst:
        waiting.remove(client)
    assert waiting.n_silent == 0
    assert waiting.close_surplus("a", 10, 10, 99.0) == 0
    assert waiting.n_addresses == 0


def test_waiting_at_the_connection_limit_silent_before_idle() -> None:
    """The silent one at once, one between two requests once all of its answer is sent; one at work never."""
    waiting: WaitingConnections[Client] = WaitingConnections()
    idle, silent, busy = opened(waiting, 3, "a", 0.0)
    for client in (idle, busy):
        waiting.remove(client)
    waiting.mark_idle(idle)
    waiting.mark_idle(silent)  # after a refusal
    assert [waiting.close_oldest() for _ in range(3)] == [True, True, False]
    assert [client.end for client in (silent, idle, busy)] == ["aborted", "closed", ""]


def test_address_of_peers() -> None:
    """An IPv4 address, mapped or not; an IPv6 /64; None for a Unix socket."""
    assert limited_address(("10.0.0.7", 1)) == limited_address(("::ffff:10.0.0.7", 2, 0, 0)) == "10.0.0.7"
    assert limited_address(("2001:db8::1", 1, 0, 0)) == limited_address(("2001:db8::ffff", 1, 0, 0))
    assert limited_address(("2001:db8::1", 1, 0, 0)) != limited_address(("2001:db8:0:1::1", 1, 0, 0))
    assert limited_address(("fe80::1%eth0", 1, 0, 2)) == limited_address(("fe80::2", 1, 0, 3))
    assert limited_address("") is None
    assert limited_address(None) is None
