"""A client of streams that can be picked up: reads events with their ids, leaves after any of them, and comes back.

It does what a client must do: after a `reset` it drops what it has of the answer, and it never sends a request that could
start a second generation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient, HttpConfig

_CONNECT_S = 5.0
_MAX_ERROR_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One event as it came. id: empty if it had none."""

    id: str
    name: str
    data: str


@dataclass(slots=True)
class ReceivedStream:
    """The events of one connection. error: the status and code of a refusal."""

    events: list[ReceivedEvent] = field(default_factory=list)
    is_whole: bool = False  # the body ended cleanly
    error: tuple[int, str] | None = None
    job_id: str = ""


async def read_stream(url: str, method: str, path: str, body: Mapping[str, Any] | None = None,
                      headers: Sequence[tuple[str, str]] = (), *, n_most: int | None = None) -> ReceivedStream:
    """Read events until the end of the body, until the connection breaks, or until there are `n_most`; then disconnect."""
    client = HttpClient("gateway", HttpConfig(url, http="1.1"), sink=Fanout(), clock=SystemClock())
    received = ReceivedStream()
    template = client.make_template(method, path, [("content-type", "application/json"), *headers])
    try:
        response = await client.send(template, (), msgspec.json.encode(body) if body is not None else b"",
                                     connect_by=SystemClock().now() + _CONNECT_S, may_resend=False)
    except StayfastError as failed:
        client.close()
        received.error = (0, failed.code)
        return received
    received.job_id = response.headers.get("x-stayfast-job", "")
    buffered = b""
    try:
        while n_most is None or len(received.events) < n_most:
            part = await response.read()
            if not part:
                received.is_whole = True
                break
            *blocks, buffered = (buffered + part).split(b"\n\n")
            received.events += [event for block in blocks if (event := _parse(block)) is not None]
    except StayfastError:
        received.is_whole = False
    finally:
        response.close()
        client.close()
    if response.status != HTTPStatus.OK:
        received.error = (response.status, _code_of(buffered[:_MAX_ERROR_BYTES]))
    elif n_most is not None:
        del received.events[n_most:]
    return received


def _parse(block: bytes) -> ReceivedEvent | None:
    """None for a comment."""
    fields: dict[str, str] = {}
    for line in block.decode().split("\n"):
        name, separator, value = line.partition(": ")
        if separator and name:
            fields[name] = value
    return ReceivedEvent(fields.get("id", ""), fields.get("event", ""), fields["data"]) if "data" in fields else None


def _code_of(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return ""
