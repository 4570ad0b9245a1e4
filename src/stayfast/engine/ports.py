"""A loopback port for the engine.

Chosen below the ephemeral range (32768 upwards on Linux), so that no outgoing connection takes it while the engine is
restarting, and kept over restarts, so that whoever holds the address need not be told.
"""

import socket
from random import Random

HOST = "127.0.0.1"

_FIRST, _LAST = 20_000, 32_767
_N_TRIES = 64


def can_listen(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as llama.cpp does: TIME_WAIT is no conflict
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose_port(rng: Random) -> int:
    """A free port; raises OSError when none of many tries was free."""
    for _ in range(_N_TRIES):
        port = rng.randint(_FIRST, _LAST)
        if can_listen(port):
            return port
    raise OSError(f"no free port among {_N_TRIES} tries in {_FIRST}-{_LAST}")
