"""A word to the service manager (systemd's sd_notify): ready, stopping."""

import contextlib
import socket


def notify(address: str | None, state: str) -> None:
    """Send `state` (READY=1, STOPPING=1) to the socket that NOTIFY_SOCKET names; nothing when there is none.

    A manager that does not listen is no reason to stop serving, so errors end here.
    """
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), target)
