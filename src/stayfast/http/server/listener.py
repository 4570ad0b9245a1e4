"""Listening sockets: for IPv6 and IPv4 together, and in the file system."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

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


async def bind_addresses(host: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Bind every address of a host, `::` for IPv4 as well. Raises OSError if one of them cannot be bound."""
    if host == ANY_ADDRESS:
        return [bind_dual_stack(port, reuse_port=reuse_port)]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    with contextlib.ExitStack() as at_failure:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the system has no such family, as where IPv6 is off
            at_failure.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            bound.append(sock)
        at_failure.pop_all()
    if not bound:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return bound


def bind_unix(path: str, mode: int) -> socket.socket:
    """Bind a Unix socket with these permissions. A socket file that nobody listens on any more is replaced.

    Raises OSError: EADDRINUSE if another process listens there, or if the file is no socket.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).stat(follow_symlinks=False).st_mode) or _is_listened_on(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        Path(path).unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        Path(path).chmod(mode)  # before it listens: nobody can connect yet
    except OSError:
        sock.close()
        raise
    return sock


def _is_listened_on(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # another owner's
    return True


def describe_socket(sock: socket.socket) -> str:
    """A bound socket's address for people: `unix:/run/x.sock`, `127.0.0.1:8090`, `[::1]:8090`."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
