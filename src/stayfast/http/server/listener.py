"""Sockets to listen on."""

import socket

EVERY_ADDRESS = "::"


def take_ipv4_too(sock: socket.socket) -> None:
    """Let a socket for IPv6 that is not bound yet take connections over IPv4 as well. OSError on a system that cannot."""
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def bound_to_every_address(port: int, *, reuse_port: bool) -> socket.socket:
    """A socket on `::` for IPv6 and IPv4, because asyncio makes one for IPv6 alone. Raises OSError."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        take_ipv4_too(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the one before may still linger
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((EVERY_ADDRESS, port))
    except OSError:
        sock.close()
        raise
    return sock
