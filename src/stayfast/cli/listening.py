"""Sockets that `stayfast serve` brings along, and what it reports to systemd.

systemd hands over open sockets (`LISTEN_FDS`, sd_listen_fds(3)), which replace `server.host` and `server.port`: they stay
open over a restart, so no client is refused. The gateway reports when it is ready, and repeatedly that its event loop runs
(`WATCHDOG_USEC`, sd_watchdog_enabled(3)). With workers that is the parent's loop, not theirs.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from stayfast.http.server.listener import bind_unix
from stayfast.settings import Settings

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


class UnusableSocket(Exception):
    """Why a socket of systemd, or `server.unix_socket`, cannot be listened on."""


def activated_sockets(variables: Mapping[str, str]) -> list[socket.socket]:
    """The sockets that systemd opened for this process; raises UnusableSocket for one that cannot be listened on."""
    if variables.get("LISTEN_PID") != str(os.getpid()):
        return []
    n_sockets = variables.get("LISTEN_FDS", "0")
    if not (n_sockets.isascii() and n_sockets.isdigit()):
        raise UnusableSocket("LISTEN_FDS is no number of sockets: systemd sets it")
    return [_open_socket(number) for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(n_sockets))]


def _open_socket(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise UnusableSocket(f"socket {descriptor} of systemd is not open: LISTEN_FDS is the number of sockets from "
                             f"{_FIRST_DESCRIPTOR} on") from error
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        raise UnusableSocket(f"socket {descriptor} of systemd is no stream socket: use ListenStream= in the .socket unit")
    return sock


def _bind_file(path: str, mode: int) -> socket.socket:
    try:
        return bind_unix(path, mode)
    except OSError as error:
        raise UnusableSocket(f"cannot listen on {path}: {error.strerror or error}; server.unix_socket needs a folder that "
                             "the gateway may write to") from error


@contextlib.contextmanager
def listening_sockets(settings: Settings, variables: Mapping[str, str]) -> Iterator[list[socket.socket]]:
    """The bound sockets of systemd and of `server.unix_socket`, whose file is removed at the end. Raises
    UnusableSocket.
    """
    server = settings.server
    sockets = activated_sockets(variables)
    if server.unix_socket:
        sockets.append(_bind_file(server.unix_socket, int(server.unix_socket_mode, 8)))
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()
        if server.unix_socket:
            Path(server.unix_socket).unlink(missing_ok=True)


def notify_systemd(address: str | None, state: str) -> None:
    """Send `state` (READY=1, STOPPING=1, WATCHDOG=1) to systemd's NOTIFY_SOCKET, if set. Errors are ignored."""
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), target)


def start_watchdog(variables: Mapping[str, str]) -> None:
    """Report twice in each of systemd's intervals that this event loop runs, if the unit has WatchdogSec=."""
    microseconds = variables.get("WATCHDOG_USEC", "")
    if not microseconds.isdigit() or variables.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    loop, every_s, address = asyncio.get_running_loop(), int(microseconds) / 2e6, variables.get("NOTIFY_SOCKET")

    def beat() -> None:
        notify_systemd(address, "WATCHDOG=1")
        loop.call_later(every_s, beat)

    beat()
