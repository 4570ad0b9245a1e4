"""Listening sockets for IPv6 and IPv4 together."""

import socket

ANY_ADDRESS = "::"


def enable_dual_stack(sock: socket.socket) -> None:
    """Make an unbound IPv6 socket accept IPv4 connections as well. Raises OSError if the system cannot."""
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def bind_dual_stack(port: int, *, reuse_port: bool) -> socket.socket:
    """Bind `::` for IPv6 and IPv4; asyncio itself would bind it for IPv6 only. Raises OSError."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        enable_dual_stack(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a previous process may still linger
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((ANY_ADDRESS, port))
    except OSError:
        sock.close()
        raise
    return sock
