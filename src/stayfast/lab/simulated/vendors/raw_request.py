"""Reads the requests of a simulated vendor from a socket: HTTP/1.1 with `content-length`, as the gateway sends them."""

import asyncio
from typing import NamedTuple


class RawRequest(NamedTuple):
    """One request. headers: with lower-case names; of several of one name the last."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


async def read_raw_request(reader: asyncio.StreamReader) -> RawRequest:
    """The next request of a connection. Raises IncompleteReadError at its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawRequest(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))
