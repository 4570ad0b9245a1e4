"""The gateway's report on its own work inside a stream: a `stayfast` member of the last event.

SDKs drop SSE comments, and response headers that left with a keep-alive cannot be extended. All protocols allow unknown
members, and the official SDKs expose them (`model_extra`). The member is in the last chunk of chat and completions, in
`message_delta` of messages, and in the `response` of the terminal event of responses.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import Api

REPORT_MEMBER: Final = "stayfast"
_DATA_LINE: Final = re.compile(rb"^data:[ ]?(\{.*\})[ \t]*\r?$", re.MULTILINE)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_TERMINAL_EVENTS: Final = (b'"response.completed"', b'"response.incomplete"', b'"response.cancelled"')


class StreamReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """How one stream was made. Durations in milliseconds; `degraded`: fallback, stale, template, partial or capped."""

    request_id: str
    upstream: str
    attempts: int
    timings_ms: dict[str, float]  # by stage, in order, and `total`
    degraded: str | None = None  # None: not degraded
    cache: str | None = None  # the value of the x-cache header; None: the route has no cache


def add_report(api: Api, tail: bytes, report: StreamReport) -> bytes:
    """Add the report to the last event of `tail` that can hold it; all other bytes stay as they are. Without such an event,
    `tail` is returned unchanged.
    """
    for line in reversed(list(_DATA_LINE.finditer(tail))):
        try:
            members = _OBJECT.decode(line[1])
            edited = _add_member(api, members, Raw(msgspec.json.encode(report)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if edited is not None:
            return tail[: line.start(1)] + msgspec.json.encode(edited) + tail[line.end(1) :]
    return tail


def _add_member(api: Api, members: dict[str, Raw], report: Raw) -> dict[str, Raw] | None:
    """The event's members with the report; None if this kind of event cannot hold it."""
    kind = bytes(members.get("type", b""))
    if api is Api.RESPONSES:
        if kind not in _TERMINAL_EVENTS or "response" not in members:
            return None
        return {**members, "response": Raw(msgspec.json.encode({**_OBJECT.decode(members["response"]),
                                                                REPORT_MEMBER: report}))}
    if api is Api.MESSAGES:
        return {**members, REPORT_MEMBER: report} if kind == b'"message_delta"' else None
    return {**members, REPORT_MEMBER: report} if bytes(members.get("choices", b"")).startswith(b"[") else None
