"""What the gateway reports inside a stream's own data: a `stayfast` member of its last event.

SDKs drop comments, and a head that left with a keep-alive cannot be added to. Members that a protocol does not know are
allowed in all of them, and the official SDKs pass them on (`model_extra`). The member stands in the last chunk of chat and
completions, in `message_delta` of messages, and in the terminal event's `response` of responses.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import Api

MEMBER: Final = "stayfast"
_DATA_LINE: Final = re.compile(rb"^data:[ ]?(\{.*\})[ \t]*\r?$", re.MULTILINE)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ENDS: Final = (b'"response.completed"', b'"response.incomplete"', b'"response.cancelled"')


class StreamReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """How one stream was made. Durations in milliseconds; `degraded`: fallback, stale, template or partial."""

    request_id: str
    upstream: str
    attempts: int
    timings_ms: dict[str, float]  # by stage, in order, and `total`
    degraded: str | None = None  # None: it is what was asked for
    cache: str | None = None  # as the x-cache header has it; None: the route has no cache


def add_report(api: Api, tail: bytes, report: StreamReport) -> bytes:
    """`tail`, the last events of a stream as they go to the client, with the report in the last one that may hold it.
    Everything else keeps its bytes; where no event of it is the protocol's, so does all of it.
    """
    for line in reversed(list(_DATA_LINE.finditer(tail))):
        try:
            members = _OBJECT.decode(line[1])
            edited = _with_report(api, members, Raw(msgspec.json.encode(report)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if edited is not None:
            return tail[: line.start(1)] + msgspec.json.encode(edited) + tail[line.end(1) :]
    return tail


def _with_report(api: Api, members: dict[str, Raw], report: Raw) -> dict[str, Raw] | None:
    """The event's members with the report among them; None: this event cannot hold it."""
    kind = bytes(members.get("type", b""))
    if api is Api.RESPONSES:
        if kind not in _ENDS or "response" not in members:
            return None
        return {**members, "response": Raw(msgspec.json.encode({**_OBJECT.decode(members["response"]), MEMBER: report}))}
    if api is Api.MESSAGES:
        return {**members, MEMBER: report} if kind == b'"message_delta"' else None
    return {**members, MEMBER: report} if bytes(members.get("choices", b"")).startswith(b"[") else None
