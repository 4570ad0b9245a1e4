"""The opening handshake of a WebSocket (RFC 6455, section 4.2): which requests may switch, and the response that switches.

Browsers send `origin`, and apply no same-origin rule to WebSockets: any page can open one to a gateway on its user's
machine. So a foreign origin is rejected unless it is allowed. Other clients send no origin.
"""

import re
from base64 import b64encode
from collections.abc import Collection, Iterable
from hashlib import sha1
from urllib.parse import urlsplit

from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.server.parser import HttpRequest
from stayfast.http.server.response import header_lines

WEBSOCKET_VERSION = "13"
UPGRADE_LINES = (("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", WEBSOCKET_VERSION))
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")  # 16 bytes in base64
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_EXPECTED = ("A WebSocket handshake is expected here: GET, HTTP/1.1, upgrade: websocket, connection: upgrade, "
             "sec-websocket-version: 13 and sec-websocket-key.")


def offer_websocket(request: HttpRequest, allowed_origins: Collection[str] = ()) -> StayfastError | None:
    """Switch to WebSocket after this head. For the head check of a path that is a WebSocket; the handler must then run
    `websocket.run_websocket`. Returns the error for any other request: 426 without an offer or with another version (send
    `UPGRADE_LINES` with it), 400 for a malformed one, 403 for a foreign origin.

    `allowed_origins`: such as https://app.example.com, beside the origin of the server itself; `*`: any.
    """
    if request.is_http_10 or _value(request, b"upgrade").lower() != b"websocket" \
            or b"upgrade" not in _words(_value(request, b"connection")):
        return Rejected(_EXPECTED, status=426, code="upgrade_required")
    version = _value(request, b"sec-websocket-version")
    if version != WEBSOCKET_VERSION.encode():
        shown = version.decode("latin-1")[:20] or "none"
        return Rejected(f"sec-websocket-version must be 13, not {shown}.", status=426,
                        code="bad_websocket_version", param="sec-websocket-version")
    if _KEY.fullmatch(_value(request, b"sec-websocket-key")) is None:
        return Rejected("sec-websocket-key must be 16 bytes in base64, once.", code="bad_websocket_handshake",
                        param="sec-websocket-key")
    origin = _value(request, b"origin").decode("latin-1")
    if origin and "*" not in allowed_origins and origin not in allowed_origins and not _is_same(origin, request):
        return Rejected("This page's origin may not open WebSockets to this gateway.", status=403, code="foreign_origin",
                        param="origin")
    request.switch_protocol()
    return None


def offered_subprotocols(request: HttpRequest) -> list[str]:
    """The subprotocols that the client offers, in its order of preference."""
    value = _value(request, b"sec-websocket-protocol").decode("latin-1")
    return [word for part in value.split(",") if _TOKEN.fullmatch(word := part.strip())]


def switch_head(request: HttpRequest, subprotocol: str | None, headers: Iterable[tuple[str, str]]) -> bytes:
    """The 101 response. Raises ValueError for a subprotocol that the client has not offered."""
    if subprotocol is not None and subprotocol not in offered_subprotocols(request):
        raise ValueError(f"the client has not offered the subprotocol {subprotocol}")
    digest = sha1(_value(request, b"sec-websocket-key") + _GUID, usedforsecurity=False).digest()
    lines = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", b64encode(digest).decode())]
    lines.extend(headers)
    if subprotocol is not None:
        lines.append(("sec-websocket-protocol", subprotocol))
    return b"HTTP/1.1 101 Switching Protocols\r\n" + header_lines(lines) + b"\r\n"


def _value(request: HttpRequest, name: bytes) -> bytes:
    """The header's value; several are joined, which makes all but lists invalid."""
    return b", ".join(value for key, value in request.raw_headers if key.lower() == name)


def _words(value: bytes) -> list[bytes]:
    return [word.strip().lower() for word in value.split(b",")]


def _is_same(origin: str, request: HttpRequest) -> bool:
    """Whether the page comes from this server: the host and port of `origin` are those of `host`."""
    try:
        return urlsplit(origin).netloc.lower() == request.fields[b"host"].decode("latin-1").lower()
    except (KeyError, ValueError):
        return False
