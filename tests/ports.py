"""TCP ports for servers that tests start as processes, to which a port must be given beforehand."""

import os
import socket
from itertools import count

# Below the ports that Linux and macOS give to outgoing connections: no client, of this test or of one that runs at the same
# time, can take such a port before its server binds it, and no client connects to itself while its server starts.
_FIRST_PORT = 12_000
_N_PORTS = 20_000
_numbers = count(os.getpid() * 997)  # processes that run tests at the same time begin far from each other


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens. This process gets another one each time."""
    for number in _numbers:
        port = _FIRST_PORT + number % _N_PORTS
        with socket.socket() as probe:
            if not _is_taken(probe, port):
                return port
    raise AssertionError("unreachable: the count has no end")


def _is_taken(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False
