"""Listening sockets for IPv6 and IPv4 together."""

import socket

EVERY_ADDRESS = "::"


def take_ipv4_too(sock: socket.socket) -> None:
    """Make an unbound IPv6 socket accept IPv4 connections as well. Raises OSError if the system cannot."""
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def bound_to_every_address(port: int, *, reuse_port: bool) -> socket.socket:
    """Bind `::` for IPv6 and IPv4; asyncio itself would bind it for IPv6 only. Raises OSError."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        take_ipv4_too(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a previous process may still linger
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((EVERY_ADDRESS, port))
    except OSError:
        sock.close()
        raise
    return sock
