"""What a client at the edge sees of admission: its quota's headers, refusals in its dialect, its own word on urgency."""

from typing import cast

import pytest
import uvloop

from stayfast.core.errors import Rejected, Shed
from stayfast.core.types import Allowance, Request
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.priority import Urgency
from stayfast.server.http_request import parse_urgency
from tests.server.fakes import ANSWER, CHAT, STREAM, FakeBackend, FakeGateway, FakeReply, Step, post, serving

LEFT = (Allowance("requests", 60, 0, 30.0), Allowance("tokens", 1000, 400, 36.0))


class Refusing(FakeGateway):
    """Turns everybody away."""

    async def serve(self, request: Request, arrival: object) -> Reply:
        raise Shed("Rate limit reached for a on requests per day: limit 60, left 0, requested 1.", status=429,
                   code="rate_limit_exceeded", reason="requests_per_day", retry_after_s=60.0, is_final=True, allowances=LEFT)


class Counting(FakeGateway):
    """Answers clients that have a quota."""

    async def serve(self, request: Request, arrival: object) -> Reply:
        steps: list[Step] = [b"data: a\n\n"] if request.stream else [ANSWER]
        reply = FakeReply(steps)
        reply.allowances = LEFT
        return cast("Reply", reply)


@pytest.mark.sockets
@pytest.mark.parametrize(("path", "header", "kind"), [
    ("/v1/chat/completions", b"\r\nx-ratelimit-remaining-requests: 0\r\n", b'"type":"rate_limit_error"'),
    ("/v1/messages", b"\r\nanthropic-ratelimit-requests-remaining: 0\r\n", b'"type":"rate_limit_error"'),
])
def test_quota_used_up_is_429_with_retry_after(path: str, header: bytes, kind: bytes) -> None:
    """429 in the client's dialect, with its own limits, when to come back, and no retry where that would be in vain."""
    async def main() -> None:
        async with serving(FakeBackend(gateway=Refusing())) as running:
            client = await running.connect()
            client.send(post(CHAT[:-1] + b',"max_tokens":5}', path))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 429 ")
            assert header in head
            assert b"\r\nretry-after: 60\r\n" in head
            assert b"\r\nx-should-retry: false\r\n" in head
            assert kind in await client.until(b"}}" if path != "/v1/messages" else b'"}')

    uvloop.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_quota_headers_have_remaining_amounts(body: bytes) -> None:
    """Whole ones and streams, as OpenAI's do."""
    async def main() -> None:
        async with serving(FakeBackend(gateway=Counting())) as running:
            client = await running.connect()
            client.send(post(body))
            head = await client.until(b"\r\n\r\n")
            assert b"\r\nx-ratelimit-limit-tokens: 1000\r\n" in head
            assert b"\r\nx-ratelimit-reset-tokens: 36s\r\n" in head

    uvloop.run(main())


@pytest.mark.parametrize(("said", "meant"), [
    (b"batch", Urgency.BATCH), (b"REALTIME", Urgency.REALTIME), (b"plain", Urgency.PLAIN)])
def test_priority_header_sets_band(said: bytes, meant: Urgency) -> None:
    """Three words, in any case; nothing said, nothing meant."""
    assert parse_urgency({b"x-stayfast-priority": said}) is meant
    assert parse_urgency({}) is None


def test_priority_header_unknown_value_is_400() -> None:
    """400 naming the header."""
    with pytest.raises(Rejected, match=r"^x-stayfast-priority must be one of realtime, plain, batch\.$") as refused:
        parse_urgency({b"x-stayfast-priority": b"high\xff"})
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "bad_priority", "x-stayfast-priority")
