"""Near misses and attempts to smuggle: cut anywhere, any bytes give the requests that they give in one read."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.http.server.parser import RequestParser
from stayfast.server.config import ServerConfig
from stayfast.server.http_request import LlmHttpRequest

_KEY, _OTHER_KEY = "sf-0123456789abcdef", "sf-fedcba9876543210"
_HEADS = (
    f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {_KEY}\r\nContent-Length: @\r\n\r\n",
    f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {_OTHER_KEY}\r\nContent-Length: @\r\n\r\n",
    (f"POST /v1/messages?beta=true HTTP/1.1\r\nhost: a\r\nx-api-key: {_KEY}\r\nx-request-id: id-@\r\ncontent-length: @\r\n"
     "traceparent: 00-@\r\nx-request-timeout: 3\r\nx-correlation-id: @\r\ncontent-type: application/json\r\n\r\n"),
    (f"POST /v1/responses HTTP/1.1\r\nhost: a\r\nx-api-key: {_KEY}\r\ncontent-length: @\r\nconnection: keep-alive\r\n"
     f"a: {'b' * 800}\r\nb: c\r\nd: e\r\nf: g\r\n\r\n"),
)
_LENGTHS = (  # how a content-length may be said; @: the number
    " 0@", " +@", "@", " @ ", "  @", " @\t", " @0", " ", " 0", " @, @", " -@", " 1_0", " 99999999999",
    " 18446744073709551617",
)
_LINES = (
    "content-length: @", "Content-Length: 3", "transfer-encoding: chunked", "expect: 100-continue",
    "connection: close", "proxy-connection: close", "connection: upgrade\r\nupgrade: h2c", "upgrade: h2c",
    "x-request-id: @", "traceparent: @", "x-request-id: @ @", "x-request-id:", "x-correlation-id: @\x00",
)
_VALUES = ("", " ", "@ @", "@ ", "@\t", "\0", "@\0@", "\x7f", "\u00ff", "@\n", "@\n@: @", "\n\n", "@\r@", "@\r\n ",
           "@" * 300)
_STRANGE = (
    *((": @", f":{said}") for said in _LENGTHS),
    *(("\r\n\r\n", f"\r\n{line}\r\n\r\n") for line in _LINES),
    ("ontent-", "ontent_"), (": @\r\n", ": @\n"), (": @\r\n", ": @\r"), (": @\r\n", ":\r\n @\r\n"), ("1.1", "1.0"),
    ("POST", "GET"), ("POST", "post"), ("POST", "\r\nPOST"), ("POST", "\r\n\r\nPOST"), ("sf-0", "sf-1"),
    *(("id-@", value) for value in _VALUES), *(("00-@", value) for value in _VALUES),
    *(("correlation-id: @", f"correlation-id: {value}") for value in _VALUES), ("id-@\r", "id-@"), ("00-@\r", "00-@"),
    ("/v1/", "/v2/"), ("/v1/", "//v1/"), ("\r\n\r\n", "\r\n\r\n\r\n"), ("\r\n\r\n", "\n\n"),
)
_BODIES = st.sampled_from([b"{}", b"x", b"y" * 9, b"y" * 10, b"z" * 300, b"z" * 2000, b"POST / HTTP/1.1\r\n\r\n", b""])


def _changed(head: str, change: tuple[str, str]) -> str:
    return head.replace(change[0], change[1], 1)


def _spoiled(data: bytes, at: int, byte: bytes, n_gone: int) -> bytes:
    at %= len(data)
    return data[:at] + byte + data[at + n_gone:]


_GOOD = st.builds(lambda head, body: head.replace("@", str(len(body))).encode() + body, st.sampled_from(_HEADS), _BODIES)
_NEAR = st.builds(lambda head, change, body: _changed(head, change).replace("@", str(len(body))).encode() + body,
                  st.sampled_from(_HEADS), st.sampled_from(_STRANGE), _BODIES)
_WRONG_LENGTH = st.builds(lambda head, body, n: head.replace("@", str(max(0, len(body) + n))).encode() + body,
                          st.sampled_from(_HEADS), _BODIES, st.integers(-3, 3))
_SPOILED = st.builds(_spoiled, _GOOD, st.integers(0, 400),
                     st.sampled_from([b"", b" ", b"\r\n", b"\n", b"\0", b":", b"1", b"\xff", b"a"]), st.integers(0, 2))
_REQUESTS = st.lists(st.one_of(_GOOD, _GOOD, _GOOD, _NEAR, _WRONG_LENGTH, _SPOILED), min_size=1, max_size=8)


def parsed(parts: list[bytes]) -> list[tuple[object, ...]]:
    """All fields of the requests in these reads, except times."""
    parser = RequestParser(LlmHttpRequest, ServerConfig().http_limits(), SystemClock(), _let_in)
    for part in parts:
        parser.feed(part)
    return [_told(inbound) for inbound in parser.ready]


def _let_in(inbound: LlmHttpRequest) -> StayfastError | None:
    return None


def _told(inbound: LlmHttpRequest) -> tuple[object, ...]:
    error = inbound.refusal
    path = inbound.path if not inbound.is_broken else ""  # of a broken one: as much as was parsed
    return (inbound.method, path, inbound.query, inbound.fields, inbound.body, inbound.keep_alive,
            inbound.is_http_10, inbound.is_broken, None if error is None else (type(error), error.status, error.code))


def reads(requests: list[bytes], cuts: list[int], *, is_whole: bool, is_split: bool) -> list[bytes]:
    """The bytes of `requests` as they are read: a request a read, or glued; cut between head and body; and at `cuts`."""
    data = b"".join(requests)
    edges = {0, len(data), *(cut % len(data) for cut in cuts)}
    at = 0
    for request in requests:
        if is_split:
            edges.add(at + request.find(b"\r\n\r\n") + 4)
        at += len(request)
        if is_whole:
            edges.add(at)
    return [data[start:end] for start, end in pairwise(sorted(edges)) if end > start]


@settings(max_examples=1000, deadline=None)
@given(_REQUESTS, st.lists(st.integers(0, 5000), max_size=3), st.booleans(), st.booleans())
def test_http_parser_splits_change_nothing(requests: list[bytes], cuts: list[int], is_whole: bool, is_split: bool) -> None:
    """Good requests, near misses and attempts to smuggle."""
    parts = reads(requests, cuts, is_whole=is_whole, is_split=is_split)
    assert parsed(parts) == parsed([b"".join(requests)])


@pytest.mark.parametrize("head", _HEADS)
@pytest.mark.parametrize("change", _STRANGE)
def test_http_parser_invalid_requests_next_to_valid_ones(head: str, change: tuple[str, str]) -> None:
    """With every length of a body around the declared one, in one read, one per request, and two."""
    body = b"0123456789" * 3
    for n_said in (1, 9, 10, 29, 30, 31, 100):
        good = head.replace("@", "12").encode() + b"x" * 12
        near = _changed(head, change).replace("@", str(n_said)).encode() + body
        requests = [good, good, near, near, good]
        whole = parsed([b"".join(requests)])
        assert [told[4:6] for told in whole[:2]] == [(b"x" * 12, True)] * 2
        for is_split in (False, True):
            assert parsed(reads(requests, [], is_whole=True, is_split=is_split)) == whole
