"""W3C trace context: `traceparent` and `tracestate`, read and written (https://www.w3.org/TR/trace-context-2/).

What cannot be read is as if it had not been sent: a header that is only about watching a request never fails it. A version
from the future is read as far as it agrees with 00, and written as 00. Flags that nobody has defined are not passed on.
"""

import re

from stayfast.core.clock import Rng
from stayfast.core.events import Trace

MAX_MEMBERS = 32
MAX_STATE_CHARS = 512  # what everybody must be able to pass on; a longer list is cut to that
LONG_MEMBER_CHARS = 128  # the first to go then
_SAMPLED, _RANDOM = 1, 2
_PARENT = re.compile(r"[ \t]*(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?[ \t]*")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ !-+\--<>-~]{0,255}[!-+\--<>-~]")


def caller_of(traceparent: str, tracestate: str = "") -> Trace | None:
    """The caller's place in its trace: `parent_id` is its span, `span_id` is empty. None where the header is not valid."""
    found = _PARENT.fullmatch(traceparent)
    if found is None or (found[5] is not None and found[1] == "00"):
        return None
    flags = int(found[4], 16)
    return Trace(found[2], "", found[3], bool(flags & _SAMPLED), _state_of(tracestate) if tracestate else "",
                 bool(flags & _RANDOM))


def below(place: Trace, rng: Rng) -> Trace:
    """A new span under the one at `place`; for a caller's place, under the caller's span."""
    return Trace(place.trace_id, _new_id(rng, 64), place.span_id or place.parent_id, place.is_sampled, place.state,
                 place.is_random)


def new_trace(rng: Rng, ratio: float) -> Trace:
    """The first span of a new trace. Of all traces, `ratio` are sampled; which, their ids say, so every service agrees."""
    trace_id = _new_id(rng, 128)
    return Trace(trace_id, _new_id(rng, 64), is_sampled=int(trace_id[16:], 16) < ratio * 2**64, is_random=True)


def headers_of(place: Trace) -> list[tuple[str, str]]:
    """The headers by which whoever is asked next learns of the span at `place`."""
    flags = (_SAMPLED if place.is_sampled else 0) | (_RANDOM if place.is_random else 0)
    headers = [("traceparent", f"00-{place.trace_id}-{place.span_id}-{flags:02x}")]
    if place.state:
        headers.append(("tracestate", place.state))
    return headers


def _new_id(rng: Rng, n_bits: int) -> str:
    return f"{rng.getrandbits(n_bits) or 1:0{n_bits // 4}x}"


def _state_of(text: str) -> str:
    """The list without its empty members; nothing of one with a member that is none, or with too many."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    if len(members) > MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    state = ",".join(members)
    return state if len(state) <= MAX_STATE_CHARS else _shortened(members)


def _shortened(members: list[str]) -> str:
    """Long members go first, from the right, and then the others: the leftmost is the caller's own."""
    n_chars = sum(map(len, members)) + len(members) - 1
    members_left: list[str | None] = list(members)
    for longer_than in (LONG_MEMBER_CHARS, 0):
        for at in reversed(range(len(members))):
            member = members_left[at]
            if n_chars > MAX_STATE_CHARS and member is not None and len(member) > longer_than:
                members_left[at] = None
                n_chars -= len(member) + 1
    return ",".join(member for member in members_left if member is not None)
