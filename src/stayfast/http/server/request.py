"""One request as it came: its head, checked, and its body.

What two servers in a row could understand in two ways is refused here or by the parser: a header that is given twice, a
transfer-encoding other than chunked, a target that is no path. RFC 9112 demands the `host` header of HTTP/1.1.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from stayfast.core.errors import Rejected, StayfastError

FRAMING_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"connection"))
_HOST_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TARGET = re.compile(rb"(?:https?://[^/?#]*)?(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?", re.IGNORECASE)


class HttpRequest:
    """A request. The parser fills it, the head check may set what it stands for; nothing changes it afterwards.

    A subclass names the headers that its application reads in `READ_HEADERS`, and those of them that may come in several
    lines (RFC 9110, 5.3) in `LIST_HEADERS`. The parser looks at no others.
    """

    READ_HEADERS: ClassVar[frozenset[bytes]] = FRAMING_HEADERS
    LIST_HEADERS: ClassVar[frozenset[bytes]] = frozenset((b"connection",))

    __slots__ = ("accepted_at", "body", "deadline_s", "fields", "is_broken", "is_http_10", "keep_alive", "method", "path",
                 "query", "raw_headers", "refusal")

    def __init__(self, accepted_at: float) -> None:
        self.accepted_at = accepted_at  # monotonic seconds, when its first byte was read
        self.method = ""
        self.path = ""  # still quoted
        self.query = b""
        self.is_http_10 = False
        self.raw_headers: Sequence[tuple[bytes, bytes]] = ()  # the head check may drop them
        self.fields: dict[bytes, bytes] = {}  # lower-case names; those of READ_HEADERS but content-length
        self.body = b""
        self.keep_alive = False
        self.deadline_s = math.inf  # after its first byte; set by the head check: until then the body must be in
        self.refusal: StayfastError | None = None  # to be answered without being handled
        self.is_broken = False  # nothing that follows on its connection can be trusted

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.READ_HEADERS = cls.READ_HEADERS | FRAMING_HEADERS
        cls.LIST_HEADERS = cls.LIST_HEADERS | HttpRequest.LIST_HEADERS

    def deadline_error(self) -> StayfastError:
        """The answer when `deadline_s` is over before the body is in."""
        return Rejected(f"The request's body did not arrive in time ({self.deadline_s:g} s).", status=408,
                        code="request_timeout")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.path}, body of {len(self.body)} bytes>"


def is_http_10(version: str) -> bool:
    """Whether it is HTTP/1.0. Raises Rejected for what is neither that nor 1.1."""
    if version not in ("1.0", "1.1"):
        raise Rejected(f"HTTP/{version} is not spoken here: use HTTP/1.1.", code="bad_version")
    return version == "1.0"


def split_target(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target in origin or absolute form. Raises Rejected."""
    found = _TARGET.fullmatch(target)
    if found is None:
        raise Rejected("The request target is not a path.", code="bad_request_target")
    return found[1].decode("ascii"), found[2] or b""


def read_fields(raw: Sequence[tuple[bytes, bytes]], request_type: type[HttpRequest], *,
                is_http_10: bool) -> dict[bytes, bytes]:
    """The headers that `request_type` reads, by lower-case name. Raises Rejected for what two servers could understand in
    two ways.
    """
    names, lists = request_type.READ_HEADERS, request_type.LIST_HEADERS
    fields: dict[bytes, bytes] = {}
    for name, value in raw:
        key = name.lower()
        if key in names:
            if key not in fields:
                fields[key] = value
            elif key in lists:
                fields[key] += b", " + value
            else:
                raise Rejected(f"The header {key.decode()} is given twice.", code="duplicate_header", param=key.decode())
    host = fields.get(b"host")
    if host is None:
        if not is_http_10:
            raise Rejected("The header host is missing.", code="missing_host", param="host")
    elif host.translate(None, _HOST_CHARS):
        raise Rejected("The header host is not a host name.", code="bad_host", param="host")
    if (coding := fields.get(b"transfer-encoding")) is not None and (is_http_10 or coding.lower() != b"chunked"):
        raise Rejected("The only transfer-encoding understood is chunked, in HTTP/1.1.",
                       code="bad_transfer_encoding", param="transfer-encoding")
    if (expected := fields.get(b"expect")) is not None and expected.lower() != b"100-continue":
        raise Rejected("The only expectation understood is 100-continue.", status=417, code="bad_expectation",
                       param="expect")
    return fields
