"""Messages between processes of one gateway: each as its length (4 bytes, big-endian) and its bytes."""

import asyncio
import socket
import struct

_LENGTH = struct.Struct(">I")


def encode_frame(message: bytes) -> bytes:
    """A message as it is written."""
    return _LENGTH.pack(len(message)) + message


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    """One message; None for one that breaks off or is longer than `max_bytes`."""
    try:
        (n_bytes,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(n_bytes) if n_bytes <= max_bytes else None
    except asyncio.IncompleteReadError:
        return None


def receive_frame(sock: socket.socket) -> bytes | None:
    """One message from a blocking socket; None when the peer has closed it."""
    head = _receive_exactly(sock, _LENGTH.size)
    return None if head is None else _receive_exactly(sock, _LENGTH.unpack(head)[0])


def _receive_exactly(sock: socket.socket, n_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < n_bytes:
        try:
            part = sock.recv(n_bytes - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
