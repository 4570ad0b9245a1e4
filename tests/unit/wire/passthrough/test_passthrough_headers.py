"""Which headers are passed on."""

import pytest

from stayfast.core.errors import Rejected
from stayfast.wire.passthrough.headers import forwarded_down, forwarded_up, own_location


def test_forwarded_up_credentials_and_connection_headers_are_dropped() -> None:
    raw = [(b"Authorization", b"Bearer sf-client"), (b"x-api-key", b"sf-client"), (b"Cookie", b"stayfast=1"),
           (b"Connection", b"keep-alive, X-Odd"), (b"X-Odd", b"1"), (b"Transfer-Encoding", b"chunked"),
           (b"Content-Length", b"9"), (b"Expect", b"100-continue"), (b"Host", b"gw"), (b"X-Forwarded-For", b"10.0.0.1"),
           (b"OpenAI-Organization", b"org-1"), (b"X-Stayfast-Priority", b"batch"), (b"Sec-Fetch-Site", b"none"),
           (b"Idempotency-Key", b"k"), (b"Content-Type", b"multipart/form-data; boundary=x"), (b"Range", b"bytes=0-9"),
           (b"Accept-Encoding", b"gzip"), (b"OpenAI-Beta", b"assistants=v2"), (b"X-Twice", b"a"), (b"X-Twice", b"b")]
    assert forwarded_up(raw, [("authorization", "Bearer sk-own")]) == [
        ("content-type", "multipart/form-data; boundary=x"), ("range", "bytes=0-9"), ("accept-encoding", "gzip"),
        ("openai-beta", "assistants=v2"), ("x-twice", "a"), ("x-twice", "b"), ("authorization", "Bearer sk-own")]


def test_forwarded_up_own_header_replaces_clients() -> None:
    assert forwarded_up([(b"OpenAI-Beta", b"theirs")], [("openai-beta", "own")]) == [("openai-beta", "own")]


def test_forwarded_up_value_outside_ascii_is_rejected() -> None:
    with pytest.raises(Rejected, match="x-title"):
        forwarded_up([(b"X-Title", b"\xe9")], [])


def test_forwarded_down_account_and_trust_headers_are_dropped() -> None:
    headers = {"content-type": "image/png", "content-encoding": "gzip", "content-range": "bytes 0-9/10", "x-odd": "1",
               "connection": "x-odd", "set-cookie": "__cf_bm=1", "strict-transport-security": "max-age=1", "alt-svc": "h3",
               "access-control-allow-origin": "*", "x-ratelimit-limit-requests": "1", "openai-organization": "acme",
               "x-request-id": "req_up", "transfer-encoding": "chunked", "content-length": "5", "retry-after": "2"}
    assert forwarded_down(headers, "https://api.openai.com", "/v1") == [
        ("content-type", "image/png"), ("content-encoding", "gzip"), ("content-range", "bytes 0-9/10"), ("retry-after", "2")]


@pytest.mark.parametrize(("location", "passed"), [
    ("https://up.example/openai/v1/files/f/content?a=b", "/v1/files/f/content?a=b"), ("/openai/v1/files/f", "/v1/files/f"),
    ("https://blob.example/x?sig=1", "https://blob.example/x?sig=1"), ("/other/x", "/other/x"),
    ("https://up.example/elsewhere", "https://up.example/elsewhere"), ("http://[bad", "http://[bad"),
])
def test_own_location_of_upstreams_api_becomes_the_gateways(location: str, passed: str) -> None:
    assert own_location(location, "https://up.example", "/openai/v1") == passed
