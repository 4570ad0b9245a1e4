"""Requests to a gateway in front of the vendor, and its log."""

import json
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from tests.clients.gateway import Gateway
from tests.server.passthrough.conftest import KEYS

OWN = {"authorization": f"Bearer {KEYS['a']}"}
MIB = 1 << 20


def connect(gateway: Gateway, timeout_s: float = 20) -> HTTPConnection:
    parts = urlsplit(gateway.origin)
    assert parts.hostname is not None
    return HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


def ask(gateway: Gateway, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None,
        ) -> tuple[HTTPResponse, bytes]:
    """One exchange on its own connection."""
    connection = connect(gateway)
    try:
        connection.request(method, target, body, headers if headers is not None else OWN)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def until(is_so: Callable[[], bool], within_s: float = 10) -> None:
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def log_line(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """The line of a request in the gateway's log."""
    found: list[dict[str, Any]] = []

    def read() -> bool:
        lines = (gateway.errors.parent / "stdout.txt").read_text().splitlines()
        found.extend(line for line in map(json.loads, lines) if line.get("request_id") == request_id)
        return bool(found)

    until(read)
    return found[0]
