"""The trace context of a request, valid or not."""

import asyncio

import pytest

from stayfast.core.events import Trace
from stayfast.http.server.parser import read_fields
from stayfast.server.http_request import LlmHttpRequest, forwarded_headers, parse_caller_trace
from tests.server.fakes import CHAT, post, serving

PARENT = b"00-12345678901234567890123456789012-1234567890123456-01"
OTHER = PARENT.replace(b"1234-", b"9999-")


def fields(*headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    """What the reader makes of a head."""
    return read_fields([(b"host", b"localhost"), *headers], LlmHttpRequest, is_http_10=False)


def test_trace_context_in_several_lines() -> None:
    """`tracestate` may be split, names may have capitals; two parents are none."""
    found = parse_caller_trace(fields((b"TraceParent", PARENT), (b"tracestate", b"a=1"), (b"Tracestate", b"b=2")))
    assert found is not None
    assert found.state == "a=1,b=2"
    assert parse_caller_trace(fields((b"traceparent", PARENT), (b"traceparent", OTHER))) is None
    assert parse_caller_trace(fields((b"tracestate", b"a=1"))) is None


def test_trace_headers_forwarded() -> None:
    """Without a span of our own the caller's headers, with one none of them; what is no ASCII never."""
    given = fields((b"traceparent", PARENT), (b"tracestate", b"a=\xe9"), (b"anthropic-beta", b"x"))
    caller = parse_caller_trace(given)
    assert forwarded_headers(given, caller) == (("anthropic-beta", "x"), ("traceparent", PARENT.decode()))
    assert forwarded_headers(given, Trace("1" * 32, "2" * 16)) == (("anthropic-beta", "x"),)


@pytest.mark.sockets
def test_trace_malformed_context_fails_no_request() -> None:
    """Two parents, garbage, bytes that are not ASCII: the request is served."""

    async def main() -> None:
        async with serving() as running:
            for lines in (["traceparent: 00-1", "traceparent: 00-2"], ["traceparent: \u00ff"], ["tracestate: ,,,=,"]):
                client = await running.connect()
                client.send(post(CHAT, "/v1/chat/completions", *lines))
                assert (await client.answer())[0] == 200

    asyncio.run(main())
