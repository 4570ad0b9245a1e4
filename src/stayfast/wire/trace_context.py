"""W3C trace context: `traceparent` and `tracestate` (https://www.w3.org/TR/trace-context-2/).

An invalid header is ignored: telemetry must not fail a request. A later version is parsed by the rules of version 00, and
written as 00. Undefined flags are dropped.
"""

import re

from stayfast.core.clock import Rng
from stayfast.core.events import Trace

MAX_MEMBERS = 32
MAX_STATE_CHARS = 512  # the length that every implementation must forward; a longer list is shortened to it
LONG_MEMBER_CHARS = 128  # longer members are removed first
_SAMPLED, _RANDOM = 1, 2
_PARENT = re.compile(r"[ \t]*(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?[ \t]*")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ !-+\--<>-~]{0,255}[!-+\--<>-~]")


def parse_traceparent(traceparent: str, tracestate: str = "") -> Trace | None:
    """The caller's trace context: `parent_id` is its span, `span_id` is empty. None if `traceparent` is invalid."""
    found = _PARENT.fullmatch(traceparent)
    if found is None or (found[5] is not None and found[1] == "00"):
        return None
    flags = int(found[4], 16)
    return Trace(found[2], "", found[3], bool(flags & _SAMPLED), _parse_state(tracestate) if tracestate else "",
                 bool(flags & _RANDOM))


def make_child_span(parent: Trace, rng: Rng) -> Trace:
    """A new span under `parent`, or under the caller's span if `parent` has no span of its own."""
    return Trace(parent.trace_id, _new_id(rng, 64), parent.span_id or parent.parent_id, parent.is_sampled, parent.state,
                 parent.is_random)


def start_trace(rng: Rng, ratio: float) -> Trace:
    """The root span of a new trace. A share of `ratio` is sampled, chosen by the trace id so that all services agree."""
    trace_id = _new_id(rng, 128)
    return Trace(trace_id, _new_id(rng, 64), is_sampled=int(trace_id[16:], 16) < ratio * 2**64, is_random=True)


def encode_trace_headers(span: Trace) -> list[tuple[str, str]]:
    """The headers for a call that belongs under `span`."""
    flags = (_SAMPLED if span.is_sampled else 0) | (_RANDOM if span.is_random else 0)
    headers = [("traceparent", f"00-{span.trace_id}-{span.span_id}-{flags:02x}")]
    if span.state:
        headers.append(("tracestate", span.state))
    return headers


def _new_id(rng: Rng, n_bits: int) -> str:
    return f"{rng.getrandbits(n_bits) or 1:0{n_bits // 4}x}"


def _parse_state(text: str) -> str:
    """The list without empty members; "" if a member is invalid or there are too many."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    if len(members) > MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    state = ",".join(members)
    return state if len(state) <= MAX_STATE_CHARS else _shorten_state(members)


def _shorten_state(members: list[str]) -> str:
    """Remove members from the right, long ones first: the leftmost belongs to the caller."""
    n_chars = sum(map(len, members)) + len(members) - 1
    members_left: list[str | None] = list(members)
    for longer_than in (LONG_MEMBER_CHARS, 0):
        for at in reversed(range(len(members))):
            member = members_left[at]
            if n_chars > MAX_STATE_CHARS and member is not None and len(member) > longer_than:
                members_left[at] = None
                n_chars -= len(member) + 1
    return ",".join(member for member in members_left if member is not None)
